"""The load test of the service: many clients at the same time, no request lost. Only `make test-service` runs it."""

import os
import pathlib

import pytest

if not os.environ.get('BMX_MELIUS_TEST_SERVICE'):
    pytest.skip('needs Locust: make test-service', allow_module_level=True)

from services import write_networks

BENCHMARKS = pathlib.Path(__file__).parent.parent / 'benchmarks'
CLIENTS = 24


@pytest.fixture
def load(monkeypatch, tmp_path):
    """The module of the load test, and a folder with photos, a network and the answers that are expected."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import serving_load

    write_networks(tmp_path)
    serving_load.make_photos(tmp_path)
    serving_load.write_answers(tmp_path, str(tmp_path / 'colour'))
    return serving_load, tmp_path


def apply(load, *options):
    serving_load, folder = load
    cores = os.sched_getaffinity(0)
    with serving_load.serving(str(folder / 'colour'), cores, options) as url:
        return serving_load.measured(url, folder, cores, CLIENTS, pause=0, seconds=2)


def test_every_request_within_the_limit_is_answered(load):
    """`measured` raises if an answer is not that of `Session`, or if client and service disagree on their number."""
    row = apply(load, '--queue', str(CLIENTS))
    assert row['answered'] > 0 and row['refused'] == 0 and row['images'] >= 1
    assert 0 < row['p50'] <= row['p95'] <= row['p99']


def test_past_the_limit_requests_are_refused_and_none_is_lost(load):
    row = apply(load, '--queue', '1')
    assert row['answered'] > 0 and row['refused'] > 0 and row['images'] == 1


def test_a_wrong_answer_ends_the_measurement(load):
    _, folder = load
    file = folder / 'expected.json'
    file.write_text(file.read_text().replace('"class a"', '"class x"'))
    with pytest.raises(SystemExit, match='lost or answered wrongly'):
        apply(load)
