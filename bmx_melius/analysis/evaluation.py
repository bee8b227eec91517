"""Metrics on labelled images: top-1 and top-5 accuracy, confusion matrix, and the difference between two networks.

Equal scores are ranked by class number, lowest first, as in `numpy.argmax`. NaN counts against the label, both as its score and as the
score of another class. Results therefore depend only on the scores.
"""

import dataclasses
import time

import numpy as np

from ..errors import UserError

RATES = ('recall', 'precision', 'f1')  # attributes of `ClassResult`
_TOP = 5  # the 5 of top-5 accuracy


def ranks(scores, labels):
    """Return the number of classes that are ranked before the label.

    Parameters
    ----------
    scores : numpy.ndarray or NDArray
        (N, classes), logits or probabilities.
    labels : numpy.ndarray or NDArray
        (N,), class numbers of any dtype.

    Returns
    -------
    numpy.ndarray, (N,) int64
        0 if the score of the label is the largest, classes - 1 if it is the smallest.

    Raises
    ------
    UserError
        If a label is not a class of the network.
    """
    scores, labels = _numpy(scores), class_numbers(labels, scores.shape[1])[:, None]
    own = np.take_along_axis(scores, labels, axis=1)
    classes = np.arange(scores.shape[1])
    behind = (scores < own) | (scores == own) & (classes >= labels)
    return np.where(np.isnan(own[:, 0]), scores.shape[1] - 1, (~behind).sum(axis=1))


def count_correct(scores, labels):
    """Return the numbers of top-1 and of top-5 hits, two ints. Arguments and errors as in `ranks`."""
    before = ranks(scores, labels)
    return int((before == 0).sum()), int((before < _TOP).sum())


def class_numbers(labels, classes):
    """Return labels as int64. Raises `UserError` if one is not a whole number in 0 .. classes - 1."""
    labels = _numpy(labels)
    wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if len(wrong):
        raise UserError(f'an image has the label {wrong[0]:g}, but the network has the classes 0 to {classes - 1}')
    return labels.astype(np.int64)


@dataclasses.dataclass
class Accuracy:
    """Counters of top-1 and top-5 accuracy. The counters of several workers can be added.

    Attributes
    ----------
    images, top1_hits, top5_hits : int
    """

    images: int = 0
    top1_hits: int = 0
    top5_hits: int = 0

    def add(self, scores, labels):
        """Add a batch. Arguments and errors as in `ranks`."""
        top1_hits, top5_hits = count_correct(scores, labels)
        self.images += len(labels)
        self.top1_hits += top1_hits
        self.top5_hits += top5_hits

    @property
    def top1(self):
        """Top-1 accuracy, 0 to 1; NaN without images."""
        return self.top1_hits / self.images if self.images else float('nan')

    @property
    def top5(self):
        """Top-5 accuracy, 0 to 1; NaN without images."""
        return self.top5_hits / self.images if self.images else float('nan')


class Confusion:
    """Confusion matrix.

    Parameters
    ----------
    classes : int

    Attributes
    ----------
    counts : numpy.ndarray
        (classes, classes) int64: number of images of the row's class that were classified as the column's class.
    """

    def __init__(self, classes):
        self.counts = np.zeros((classes, classes), np.int64)

    @classmethod
    def of(cls, counts):
        """Return the confusion matrix with these `counts`, an array of any numeric dtype."""
        confusion = cls(len(counts))
        confusion.counts += np.asarray(counts).astype(np.int64)
        return confusion

    def add(self, predictions, labels):
        """Add a batch; both arguments are (N,) class numbers."""
        np.add.at(self.counts, (labels, predictions), 1)

    def per_class(self):
        """Return a list with a `ClassResult` for each class."""
        images, hits, predicted = self.counts.sum(axis=1), self.counts.diagonal(), self.counts.sum(axis=0)
        mistakes = self.counts - np.diag(hits)
        return [
            ClassResult(int(number), int(hit), *((int(row.argmax()), int(row.max())) if row.any() else (None, 0)), int(times))
            for number, hit, times, row in zip(images, hits, predicted, mistakes)
        ]

    def rows(self, names):
        """Return a table with a row for each class, a list of dicts: its name, the fields of `ClassResult`, and its rates.

        `top1` equals `recall`: it is the top-1 accuracy on the images of the class.
        """
        return [
            {'name': name, **dataclasses.asdict(row), 'top1': row.recall, **{rate: getattr(row, rate) for rate in RATES}}
            for name, row in zip(names, self.per_class())
        ]

    def macro(self):
        """Return the means of precision, recall and F1 over the classes, a dict.

        As in scikit-learn with ``average='macro', zero_division=0``: over all classes that have images or are predicted, an undefined value
        counts as 0; NaN without images.
        """
        rows = [row for row in self.per_class() if row.images or row.predicted]
        return {
            name: sum(getattr(row, name) or 0.0 for row in rows) / len(rows) if rows else float('nan')
            for name in ('precision', 'recall', 'f1')
        }


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """Result for the images of one class.

    Attributes
    ----------
    images, hits : int
        Number of images, and number of correctly classified images.
    taken_for : int or None
        The class most often predicted instead (the lowest number if several are equal); None without mistakes.
    mistakes : int
        Number of images for which `taken_for` was predicted.
    predicted : int
        Number of images for which the class was predicted, correctly or not.
    """

    images: int
    hits: int
    taken_for: 'int | None'
    mistakes: int
    predicted: int = 0

    @property
    def recall(self):
        """Share of correctly classified images of the class, 0 to 1; None without images."""
        return self.hits / self.images if self.images else None

    @property
    def precision(self):
        """Share of the images of the class among those for which it was predicted, 0 to 1; None if it was never predicted."""
        return self.hits / self.predicted if self.predicted else None

    @property
    def f1(self):
        """Harmonic mean of precision and recall, 0 to 1; None without images and predictions."""
        both = self.images + self.predicted
        return 2 * self.hits / both if both else None


class Evaluation:
    """Results of a network on labelled images.

    Parameters
    ----------
    classes : int

    Attributes
    ----------
    accuracy : Accuracy
    confusion : Confusion
    seconds : float
        Run time of the network, without the time to read images.
    """

    def __init__(self, classes):
        self.accuracy, self.confusion, self.seconds = Accuracy(), Confusion(classes), 0.0
        self._batches = []

    def add(self, scores, probabilities, labels, seconds):
        """Add a batch: (N, classes) scores and probabilities, (N,) labels, and the run time of the network in seconds."""
        labels, predictions = class_numbers(labels, scores.shape[1]), scores.argmax(axis=1)
        self.accuracy.add(scores, labels)
        self.confusion.add(predictions, labels)
        self.seconds += seconds
        self._batches.append((labels, predictions, np.take_along_axis(probabilities, predictions[:, None], axis=1)[:, 0]))

    @property
    def images_per_second(self):
        """Throughput of the network, without reading images."""
        return self.accuracy.images / self.seconds

    def predictions(self):
        """Return the arrays (labels, predicted classes, their probabilities), each (N,), in the order of the images."""
        return tuple(np.concatenate(parts) for parts in zip(*self._batches))


@dataclasses.dataclass
class Difference:
    """Difference between two networks on the same images.

    Attributes
    ----------
    predictions : int
        Number of images for which they predict different classes.
    score : float
        Largest absolute difference of a score.
    """

    predictions: int = 0
    score: float = 0.0

    def add(self, scores, others):
        """Add a batch: (N, classes) scores of both networks."""
        self.predictions += int((scores.argmax(axis=1) != others.argmax(axis=1)).sum())
        self.score = max(self.score, float(np.abs(scores.astype(np.float64) - others).max()))


def evaluate(networks, batches):
    """Evaluate networks on the same images, in one pass.

    Parameters
    ----------
    networks : sequence
        Callables (images, names) -> (N, classes) scores, NumPy, with an attribute `classes` and a method `probabilities(scores)`.
    batches : iterable
        Tuples (images, labels, names): the input of the networks, (N,) class numbers, and a name of each image for errors.

    Returns
    -------
    (list of Evaluation, list of Difference)
        One evaluation per network; one difference from the first network for each of the others.

    Raises
    ------
    UserError
        If a label is not a class of the networks. Errors of the networks are passed on.
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
    """Return a NumPy array, from a NumPy array or an NDArray."""
    return array if isinstance(array, np.ndarray) else array.asnumpy()
