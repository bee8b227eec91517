"""Accuracy and confusion matrix: the numbers of scikit-learn and of plain loops."""

import mxnet as mx
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bmx_melius.analysis.evaluation import Accuracy, Confusion, ranks


def random_scores(images=200, classes=8):
    scores = np.random.randn(images, classes).astype(np.float32)
    return scores, np.random.randint(0, classes, images)


def test_accuracy_and_confusion_are_those_of_scikit_learn():
    scores, labels = random_scores()
    accuracy, confusion = Accuracy(), Confusion(8)
    accuracy.add(scores, labels)
    confusion.add(scores.argmax(axis=1), labels)
    assert accuracy.images == 200
    assert accuracy.top1 == pytest.approx(sklearn.metrics.accuracy_score(labels, scores.argmax(axis=1)))
    assert accuracy.top5 == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, scores, k=5))
    expected = sklearn.metrics.confusion_matrix(labels, scores.argmax(axis=1))
    assert np.array_equal(confusion.counts, expected)
    predictions = scores.argmax(axis=1)
    precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(labels, predictions)
    for label, row in enumerate(confusion.per_class()):
        mistakes = {other: count for other, count in enumerate(expected[label]) if other != label}
        assert (row.images, row.hits) == (expected[label].sum(), expected[label, label])
        assert (row.recall, row.precision, row.f1) == pytest.approx((recall[label], precision[label], f1[label]))
        assert row.mistakes == max(mistakes.values()) == mistakes[row.taken_for]


few_values = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 7)), elements=st.sampled_from([-1.0, 0.0, -0.0, 2.0]))


@given(few_values, st.data())
def test_equal_scores_are_ranked_by_the_number_of_their_class(scores, data):
    labels = np.array([data.draw(st.integers(0, scores.shape[1] - 1)) for _ in scores])
    expected = [sorted(range(len(row)), key=lambda number: (-row[number], number)).index(label) for row, label in zip(scores, labels)]
    assert ranks(scores, labels).tolist() == expected
    assert np.array_equal(ranks(scores, labels) == 0, scores.argmax(axis=1) == labels)


def test_scores_that_are_no_numbers_count_against_the_label():
    nan = float('nan')
    scores = np.array([[nan, 1, 2, 3, 4, 5], [nan, 1, 2, 3, 4, 5], [nan] * 6], np.float32)
    assert ranks(scores, np.array([0, 5, 0])).tolist() == [5, 1, 5]


def test_counters_add_up_over_batches_and_accept_arrays_of_mxnet():
    scores, labels = random_scores()
    whole, parts, confusion = Accuracy(), Accuracy(), Confusion(8)
    whole.add(scores, labels)
    for chosen in (slice(0, 50), slice(50, 51), slice(51, 200)):
        parts.add(mx.nd.array(scores[chosen]), mx.nd.array(labels[chosen]))
        confusion.add(scores[chosen].argmax(axis=1), labels[chosen])
    assert parts == whole
    assert np.array_equal(confusion.counts, sklearn.metrics.confusion_matrix(labels, scores.argmax(axis=1)))


def test_classes_without_images_or_mistakes_are_reported():
    confusion = Confusion(3)
    confusion.add(np.array([0, 0]), np.array([0, 0]))
    first, second, _ = confusion.per_class()
    assert (first.recall, first.taken_for, first.mistakes) == (1, None, 0)
    assert (second.images, second.recall, second.taken_for) == (0, None, None)
    assert (second.precision, second.f1) == (None, None)


@pytest.mark.parametrize('absent', [(), (0,), (1, 2)])
def test_macro_averages_are_those_of_scikit_learn_also_with_classes_that_are_missing_or_never_predicted(absent):
    scores, labels = random_scores(60)
    predictions = np.where(np.isin(scores.argmax(axis=1), absent), 7, scores.argmax(axis=1))
    labels = np.where(np.isin(labels, (*absent, 3)), 4, labels)  # class 3 is predicted only
    confusion = Confusion(9)  # class 8 neither
    confusion.add(predictions, labels)
    expected = sklearn.metrics.precision_recall_fscore_support(labels, predictions, average='macro', zero_division=0)[:3]
    assert tuple(confusion.macro()[name] for name in ('precision', 'recall', 'f1')) == pytest.approx(expected)
