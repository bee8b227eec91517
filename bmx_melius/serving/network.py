"""A packed network in the service."""

import functools
import os
import re

import numpy as np

from ..deployment.runtime.session import Session, classifier_of
from ..errors import UserError
from ..files.exported import Exported
from ..vision.classifier import require_finite
from .limits import Refusal

_NAME = re.compile(r'\w[\w.-]*', re.ASCII)  # it becomes a part of URLs, where . and .. have a meaning
_SHAPES_KEPT = 64


class ServedNetwork:
    """A packed network: its `Session`, its name in URLs, and how images become its inputs and its outputs classes.

    Parameters
    ----------
    name : str
    prefix : str
        Prefix of the packed files.
    threads : int
        Threads of a run, see `Session`.

    Attributes
    ----------
    name : str
    input_names : list of str
    input_shapes : list of tuple
        Shapes at conversion, with the batch None.
    input_spec : InputSpec or None
        Preprocessing of images, if the files describe it.
    output_names : list of str
        ``output0``, ``output1``, ...: packed files do not contain names of outputs.
    output_shapes : list of tuple
        For inputs of those shapes, with the batch None.
    not_a_classifier : str
        Why the network cannot classify uploaded images; empty if it can.

    Raises
    ------
    UserError
        If the files do not hold a packed network that a `Session` can run, or its outputs are not finite.
    """

    def __init__(self, name, prefix, threads=0):
        if not _NAME.fullmatch(name):
            raise UserError(
                f'{name!r} cannot be a part of a URL: name the network with letters, digits and _, and after them . and -, NAME=PREFIX'
            )
        self.name = name
        self._session = Session(prefix, threads=threads)
        self.input_names, self.input_shapes = self._session.input_names, self._session.input_shapes
        self.input_spec = self._session.input_spec
        self._output_shapes = functools.lru_cache(_SHAPES_KEPT)(self._session.output_shapes)
        examples = [np.zeros((1, *shape[1:]), np.float32) for shape in self.input_shapes]
        outputs = self.run(*examples)  # also prepares what the first run of a session has to
        for output in outputs:
            require_finite(output.reshape(1, -1), prefix, ['an image of zeros'])
        self.output_names = [f'output{number}' for number in range(len(outputs))]
        self.output_shapes = [(None, *output.shape[1:]) for output in outputs]
        self.not_a_classifier, self._classifier = '', None
        if self.input_spec is None:
            self.not_a_classifier = (
                'its files do not describe the preprocessing of images: convert it again with a description, or send arrays'
            )
            return
        try:
            names = self._session.class_names
            self._classifier = classifier_of(self._session, name, self.input_spec, names, Exported(prefix).symbol_file)
        except UserError as error:
            self.not_a_classifier = str(error)

    def __repr__(self):
        return f'{self.name}: {self._session!r}'

    def check_shapes(self, shapes):
        """Raise `UserError` unless the network accepts inputs of these shapes, batch included."""
        if len({shape[:1] for shape in shapes}) > 1:
            raise UserError(f'all inputs must have the same batch, not {", ".join(map(str, shapes))}')
        self._output_shapes(*((1, *shape[1:]) for shape in shapes))

    def run(self, *arrays):
        """Run the network; return its outputs, a list of arrays."""
        outputs = self._session(*arrays)
        return [outputs] if isinstance(outputs, np.ndarray) else outputs

    def describe(self, outputs, top):
        """Return the most probable classes of an image, a list of dicts with ``class``, ``name`` and ``probability``.

        Parameters
        ----------
        outputs : list of numpy.ndarray
            Result of `run` for one image.
        top : int

        Raises
        ------
        Refusal
            If the outputs are not finite.
        """
        (scores,) = outputs
        try:
            (rows,) = self._classifier.most_probable(self._classifier.checked(scores, ['the upload']), top)
        except UserError as error:
            raise Refusal(422, str(error)) from error
        return rows


def load_networks(arguments, threads=0, find=Exported):
    """Load networks.

    Parameters
    ----------
    arguments : list of str
        ``PREFIX`` or ``NAME=PREFIX``; the name of a prefix is its last part.
    threads : int
    find : callable
        Function that returns the `Exported` of a PREFIX.

    Returns
    -------
    dict of str to ServedNetwork

    Raises
    ------
    UserError
        If a network cannot be loaded, or two have the same name.
    """
    networks = {}
    for argument in arguments:
        name, equals, prefix = argument.partition('=')
        if not equals or os.sep in name:  # an equals sign in the path of a prefix
            prefix, name = argument, None
        exported = find(prefix)
        exported.require()
        prefix, name = exported.prefix, name or os.path.basename(exported.prefix)
        if name in networks:
            raise UserError(f'two networks are called {name}: name one of them, NAME={prefix}')
        networks[name] = ServedNetwork(name, prefix, threads)
    return networks
