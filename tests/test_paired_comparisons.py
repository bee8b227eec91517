"""What benchmarks share to compare networks on the same images, in environments without MXNet, too."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from support.paths import ROOT

from benchmarks.paired import changed_hits, mcnemar, timed


@pytest.mark.parametrize('lost, won', [(0, 0), (1, 0), (3, 3), (2, 9), (9, 2), (40, 61), (0, 25)])
def test_p_is_that_of_the_exact_binomial_test(lost, won):
    expected = stats.binomtest(lost, lost + won).pvalue if lost + won else 1
    assert mcnemar(lost, won) == pytest.approx(expected, rel=1e-12)


def test_images_that_only_one_network_classifies_correctly_are_counted():
    before, after = np.array([True, True, True, False, False]), np.array([True, False, False, True, False])
    assert changed_hits(before, after) == (2, 1, 1.0)


def test_each_network_is_timed_with_its_images_and_relative_to_the_first():
    calls = []
    found = timed(
        {name: (lambda x, name=name: calls.append((name, x.shape, sum(range(10000)))), np.zeros((3, 2))) for name in ('first', 'second')}
    )
    assert {call[:2] for call in calls} == {('first', (1, 2)), ('second', (1, 2))} and [*found] == ['first', 'second']
    assert found['first'][1] == 1 and all(milliseconds >= 0 for milliseconds, _ in found.values())


def test_the_comparisons_need_neither_mxnet_nor_scipy():
    program = 'import sys; sys.modules.update(mxnet=None, scipy=None); from benchmarks.paired import mcnemar; print(mcnemar(2, 0))'
    assert subprocess.run([sys.executable, '-c', program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout == '0.5\n'
