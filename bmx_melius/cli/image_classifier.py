"""Base class of the networks that predict and evaluate run on images, and packed networks, which run without MXNet."""

import abc

import numpy as np

from ..deployment.runtime.session import Session
from ..vision.class_scores import number_of_classes, require_finite, softmax


class ImageClassifier(abc.ABC):
    """A network that maps images to class scores.

    Parameters
    ----------
    name : str
        Name of the network in errors.
    shapes : list of tuple of int
        Shapes of its outputs for a batch of one image.
    gives_probabilities : bool
        Whether the scores are probabilities; else they are logits.

    Attributes
    ----------
    name, gives_probabilities
        The parameters.
    classes : int

    Raises
    ------
    UserError
        Unless the network has one output with one value per class.
    """

    def __init__(self, name, shapes, gives_probabilities):
        self.classes = number_of_classes(shapes, name)
        self.name, self.gives_probabilities = name, gives_probabilities

    @abc.abstractmethod
    def read(self, image, spec):
        """Read and preprocess an image file by an `InputSpec`; return the argument of `__call__`. Raises `OSError` or `UserError`."""

    @abc.abstractmethod
    def _run(self, images):
        """Return the scores as a NumPy array whose first axis is the batch."""

    def __call__(self, images, names):
        """Run the network.

        Parameters
        ----------
        images : NDArray, or numpy.ndarray for a packed network without MXNet
            (N, channels, size, size) float32.
        names : sequence of str
            Names of the images in errors.

        Returns
        -------
        numpy.ndarray, (N, classes) float32

        Raises
        ------
        UserError
            If the network does not run on such images, or scores are not finite.
        """
        scores = self._run(images).reshape(len(images), -1)
        require_finite(scores, self.name, names)
        return scores

    def probabilities(self, scores):
        """Convert (N, classes) scores to probabilities, float64; logits by softmax."""
        return scores.astype(np.float64) if self.gives_probabilities else softmax(scores)


class PackedClassifier(ImageClassifier):
    """A packed network that maps images to logits, run by a `Session`, without MXNet and OpenCV.

    Parameters
    ----------
    exported : Exported
    spec : InputSpec
        Input of the network.

    Raises
    ------
    UserError
        If the files do not hold a network that a `Session` can run, or it is not a classifier of such images.
    """

    def __init__(self, exported, spec):
        self._session = Session(exported)
        super().__init__(exported.prefix, self._session.output_shapes((1, *spec.shape)), gives_probabilities=False)

    def read(self, image, spec):
        return spec.array(image)

    def _run(self, images):
        return self._session(images)
