"""What a run tells of itself: how fast it is, and the files in its folder."""
import time

import pytest

from bmx_melius.training.progress import Pace, Progress


def test_the_pace_is_that_of_the_last_seconds():
    pace = Pace(seconds=10)
    pace.start(100., 7, 3.)
    now, updates, waiting = 100., 7, 3.
    for seconds, waited in [(1, .9)] * 50 + [(.5, .1)] * 30:  # at first slow, and waiting for data
        now, updates, waiting = now + seconds, updates + 1, waiting + waited
        pace.add(now, updates, waiting)
    assert pace.updates_per_second == pytest.approx(2)
    assert pace.waiting_share == pytest.approx(.2)


def test_the_pace_of_updates_longer_than_its_window_is_that_of_the_last():
    pace = Pace(seconds=10)
    pace.start(0., 0, 0.)
    pace.add(100., 1, 90.)
    pace.add(120., 2, 95.)
    assert (pace.updates_per_second, pace.waiting_share) == (1 / 20, 5 / 20)


@pytest.mark.parametrize('wait,work', [(.06, .02), (.02, .06), (0, .04)])
def test_the_share_of_waiting_is_the_one_a_slow_source_makes(wait, work, monkeypatch):
    clock = [5.]
    monkeypatch.setattr(time, 'perf_counter', lambda: clock[0])

    def slow_source():
        for batch in range(8):
            clock[0] += wait
            yield batch

    progress = Progress()
    for _ in progress.timed(slow_source()):
        clock[0] += work
        progress.add([], [], [])
    assert progress.pace.waiting_share == pytest.approx(wait / (wait + work))
    assert progress.pace.updates_per_second == pytest.approx(1 / (wait + work))
    assert progress.waiting / progress.running == pytest.approx(wait / (wait + work))
    assert progress.batch == 8
