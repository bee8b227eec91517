"""Parameters of tests of which some are tried in each run, the others only by `make test-long`."""

import pytest


def mostly_long(values, *short, key=lambda value: value):
    """Return parameters for `pytest.mark.parametrize`: of `values`, those whose `key` is one of `short` for each run, others for long runs.

    A value that is a tuple has several arguments.
    """
    found = [key(value) in short for value in values]
    assert sum(found) >= len(short), f'{short} are not all among {values}'
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[] if in_short else [pytest.mark.long])
        for value, in_short in zip(values, found)
    ]


def some_long(values, *long, key=lambda value: value):
    """Return parameters for `pytest.mark.parametrize`: of `values`, those whose `key` is one of `long` for long runs only."""
    values = list(values)
    assert set(long) <= set(map(key, values)), f'{long} are not all among {values}'
    return mostly_long(values, *(key(value) for value in values if key(value) not in long), key=key)
