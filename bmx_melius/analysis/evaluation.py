"""How good a network is on labelled images: the one definition of top-1, top-5, confusion, and of the difference of two networks.

Equal scores are ranked by the number of their class, the lowest first, as `numpy.argmax` does; a score that is not a number, and one
beside it, counts against the label. So a result depends on nothing but the scores.
"""

import dataclasses
import time

import numpy as np

from ..errors import UserError

_TOP = 5  # of top-5; fewer where there are fewer classes


def ranks(scores, labels):
    """How many classes come before the right one.

    Parameters
    ----------
    scores : numpy.ndarray or NDArray
        (N, classes), logits or probabilities.
    labels : numpy.ndarray or NDArray
        (N,), class numbers of any dtype.

    Returns
    -------
    numpy.ndarray, (N,) int64
        0 where the label's score is the largest, classes - 1 where it is the smallest.

    Raises
    ------
    UserError
        When a label is no class of the network.
    """
    scores, labels = _numpy(scores), class_numbers(labels, scores.shape[1])[:, None]
    own = np.take_along_axis(scores, labels, axis=1)
    classes = np.arange(scores.shape[1])
    behind = (scores < own) | (scores == own) & (classes >= labels)
    return np.where(np.isnan(own[:, 0]), scores.shape[1] - 1, (~behind).sum(axis=1))


def count_correct(scores, labels):
    """How many images have their label's score as the largest, and among the 5 largest: two ints; arguments and errors as of `ranks`."""
    before = ranks(scores, labels)
    return int((before == 0).sum()), int((before < _TOP).sum())


def class_numbers(labels, classes):
    """Labels as int64. Raises `UserError` when one is not among 0 .. classes - 1."""
    labels = _numpy(labels).astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(f'an image has the label {wrong[0]}, but the network has the classes 0 to {classes - 1}')
    return labels


@dataclasses.dataclass
class Accuracy:
    """Top-1 and top-5 accuracy as counters; over several workers each is the sum of theirs.

    Attributes
    ----------
    images, top1_hits, top5_hits : int
    """

    images: int = 0
    top1_hits: int = 0
    top5_hits: int = 0

    def add(self, scores, labels):
        """Count a batch; arguments and errors as of `ranks`."""
        top1_hits, top5_hits = count_correct(scores, labels)
        self.images += len(labels)
        self.top1_hits += top1_hits
        self.top5_hits += top5_hits

    @property
    def top1(self):
        """Share of the images whose label has the largest score, 0 to 1; NaN without images."""
        return self.top1_hits / self.images if self.images else float('nan')

    @property
    def top5(self):
        """Share of the images whose label is among the 5 largest scores, 0 to 1."""
        return self.top5_hits / self.images if self.images else float('nan')


class Confusion:
    """Which classes are taken for which.

    Parameters
    ----------
    classes : int

    Attributes
    ----------
    counts : numpy.ndarray
        (classes, classes) int64: images of the class of the row that were taken for the class of the column.
    """

    def __init__(self, classes):
        self.counts = np.zeros((classes, classes), np.int64)

    def add(self, predictions, labels):
        """Count a batch: (N,) class numbers each."""
        np.add.at(self.counts, (labels, predictions), 1)

    def per_class(self):
        """A `ClassResult` for each class, in their order."""
        images, hits = self.counts.sum(axis=1), self.counts.diagonal()
        mistakes = self.counts - np.diag(hits)
        return [
            ClassResult(int(number), int(hit), *((int(row.argmax()), int(row.max())) if row.any() else (None, 0)))
            for number, hit, row in zip(images, hits, mistakes)
        ]


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """Of the images of one class.

    Attributes
    ----------
    images, hits : int
        How many there are, and how many of them were taken for what they are.
    taken_for : int or None
        The other class they are most often taken for (the lowest number among equals); None where there was no mistake.
    mistakes : int
        How many were taken for that one.
    """

    images: int
    hits: int
    taken_for: 'int | None'
    mistakes: int

    @property
    def top1(self):
        """Share of the images that were taken for what they are; None without images."""
        return self.hits / self.images if self.images else None


class Evaluation:
    """What a network made of labelled images.

    Parameters
    ----------
    classes : int

    Attributes
    ----------
    accuracy : Accuracy
    confusion : Confusion
    seconds : float
        That the network took; reading images is not counted.
    """

    def __init__(self, classes):
        self.accuracy, self.confusion, self.seconds = Accuracy(), Confusion(classes), 0.0
        self._batches = []

    def add(self, scores, probabilities, labels, seconds):
        """Count a batch: (N, classes) scores and the probabilities that follow from them, (N,) labels, and the time it took."""
        labels, predictions = class_numbers(labels, scores.shape[1]), scores.argmax(axis=1)
        self.accuracy.add(scores, labels)
        self.confusion.add(predictions, labels)
        self.seconds += seconds
        self._batches.append((labels, predictions, np.take_along_axis(probabilities, predictions[:, None], axis=1)[:, 0]))

    @property
    def images_per_second(self):
        """Of the network alone."""
        return self.accuracy.images / self.seconds

    def predictions(self):
        """The arrays (labels, predicted classes, their probabilities), each (N,), in the order of the images."""
        return tuple(np.concatenate(parts) for parts in zip(*self._batches))


@dataclasses.dataclass
class Difference:
    """Of the scores of two networks for the same images.

    Attributes
    ----------
    predictions : int
        How many images they take for different classes.
    score : float
        The largest absolute difference of a score.
    """

    predictions: int = 0
    score: float = 0.0

    def add(self, scores, others):
        """Count a batch: (N, classes) scores of both."""
        self.predictions += int((scores.argmax(axis=1) != others.argmax(axis=1)).sum())
        self.score = max(self.score, float(np.abs(scores.astype(np.float64) - others).max()))


def evaluate(networks, batches):
    """Evaluate networks on the same images, in one pass.

    Parameters
    ----------
    networks : sequence
        Callables (images, names) -> (N, classes) scores, NumPy, with an attribute `classes` and a method `probabilities(scores)`.
    batches : iterable
        Of (images, labels, names): what the networks take, (N,) class numbers, and what errors call each image.

    Returns
    -------
    (list of Evaluation, list of Difference)
        One evaluation for each network; one difference for each but the first, from the first.

    Raises
    ------
    UserError
        When a label is no class of the networks; what a network raises.
    """
    evaluations = [Evaluation(network.classes) for network in networks]
    differences = [Difference() for _ in networks[1:]]
    for images, labels, names in batches:
        results = []
        for network, evaluation in zip(networks, evaluations):
            started = time.perf_counter()
            results.append(network(images, names))
            seconds = time.perf_counter() - started
            evaluation.add(results[-1], network.probabilities(results[-1]), labels, seconds)
        for difference, scores in zip(differences, results[1:]):
            difference.add(results[0], scores)
    return evaluations, differences


def _numpy(array):
    """A NumPy array of one, or of an NDArray."""
    return array if isinstance(array, np.ndarray) else array.asnumpy()
