"""The load test of the service: many clients at the same time, no request lost. Only `make test-service` runs it with clients."""

import dataclasses
import importlib
import os

import numpy as np
import pytest
from support.paths import ROOT
from support.services import write_networks

needs_locust = pytest.mark.skipif(not os.environ.get('BMX_MELIUS_TEST_SERVICE'), reason='needs Locust: make test-service')
BENCHMARKS = ROOT / 'benchmarks'
CLIENTS = 24


@pytest.fixture
def serving_load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module('serving_load')


@pytest.mark.parametrize('latency', [0.01, 0.9])
def test_rates_are_those_of_the_measured_interval(serving_load, latency):
    """Also rates of a few slow requests: an interval from the first to the last answer would give higher rates."""
    starts = np.arange(0, 12, 0.5) + 0.001  # two requests a second
    requests = [('refused' if number % 4 == 0 else 'answered', start, start + latency) for number, start in enumerate(starts)]
    found = serving_load.rates_and_latencies(requests, 2, 10)
    assert (found['offered'], found['answered'], found['refused']) == (2, 1.5, 0.5)
    assert [found[part] for part in ('p50', 'p95', 'p99')] == [pytest.approx(1000 * latency)] * 3


def test_requests_on_the_way_at_the_end_of_the_interval_count_for_the_latency(serving_load):
    found = serving_load.rates_and_latencies([('answered', 1, 2), ('answered', 2, 3), ('answered', 3, 9)], 1, 5)
    assert (found['offered'], found['answered'], found['p50'], found['p99']) == (0.75, 0.5, 1000, pytest.approx(6000, rel=0.02))
    with pytest.raises(SystemExit, match='use more --seconds'):
        serving_load.rates_and_latencies([('refused', 1, 2)], 1, 5)


@pytest.fixture
def load(serving_load, tmp_path):
    """The module of the load test, and a folder with photos, a network and the answers that are expected."""
    write_networks(tmp_path)
    serving_load.make_photos(tmp_path)
    serving_load.write_answers(tmp_path, str(tmp_path / 'colour'))
    return serving_load, tmp_path


def apply(load, *options):
    serving_load, folder = load
    cores = os.sched_getaffinity(0)
    with serving_load.serving(str(folder / 'colour'), cores, options) as (url, _):
        return serving_load.measured(url, folder, cores, CLIENTS, pause=0, seconds=2)


@needs_locust
def test_every_request_within_the_limit_is_answered(load):
    """`measured` raises if an answer differs from `Session`, or if client and service disagree on their number."""
    row = apply(load, '--queue', str(CLIENTS))
    assert row['answered'] > 0 and row['refused'] == 0 and row['images'] >= 1
    assert row['offered'] * 2 == pytest.approx(row['answered'] * 2, abs=CLIENTS)  # in two seconds; the difference is on the way
    assert 0 < row['p50'] <= row['p95'] <= row['p99']


@needs_locust
def test_past_the_limit_requests_are_refused_and_none_is_lost(load):
    row = apply(load, '--queue', '1')
    assert row['answered'] > 0 and row['refused'] > 0 and row['images'] == 1


@needs_locust
def test_a_wrong_answer_ends_the_measurement(load):
    _, folder = load
    file = folder / 'expected.json'
    file.write_text(file.read_text().replace('"class a"', '"class x"'))
    with pytest.raises(SystemExit, match='lost or answered wrongly'):
        apply(load)


@needs_locust
def test_beside_hostile_clients_another_gets_right_answers_and_a_broken_promise_ends_the_measurement(load, monkeypatch):
    serving_load, folder = load
    hostile = serving_load.hostile_clients
    for suffix in ('-symbol.json', '-0000.params', '-summary.json'):
        (folder / f'colour{suffix}').rename(folder / f'meliusnet22{suffix}')
    (row,) = serving_load.measure_hostile(folder, 2, hostile.KINDS[-1:])
    assert row['answers'] > 0 and row['own'] > hostile.LIMITS.upload_bytes  # their bodies have arrived
    monkeypatch.setattr(hostile, 'LIMITS', dataclasses.replace(hostile.LIMITS, upload_bytes=1000))
    with pytest.raises(SystemExit, match='own is .*, more than the 32,000 that'):
        serving_load.measure_hostile(folder, 2, hostile.KINDS[-1:])
