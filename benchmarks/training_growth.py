"""Test for memory leaks and slowdown in training: memory and step time over 2,140 updates of train_imagenet.py in one process.

A tiny network is trained on digits for 20 epochs with all outputs of an epoch (validation, checkpoint, tables, plots, flips). The resident
memory is compared with that after 200 updates, when memory is planned and all libraries are loaded. The step time is the median of 200
steps.

Measured on two idle cores of a Xeon (Emerald Rapids): 294 MB after 200 updates, 318 MB at the end; 34.4 ms per step after 200
updates, 34.7 ms at the end. With MXNet's concatenation instead of `bmx_melius.nn.channels.concat` memory grew without bound, by 1 MB per
epoch or 11 KB per update.

Run: ``python benchmarks/training_growth.py``.
"""

import argparse
import contextlib
import json
import logging
import os
import statistics
import tempfile
import time

from bmx_melius.bench.first_result import resident_bytes

BATCH_SIZE, EPOCHS = 10, 20
WARM_UP = WINDOW = 200
OPTIONS = {'block_numbers': [1, 1], 'transitions': [0.5]}


class Recorder(logging.Handler):
    """Log handler that stores the time and the resident memory in bytes at each message about an update."""

    def __init__(self):
        super().__init__()
        self.seconds, self.bytes = [], []

    def emit(self, record):
        if ', update ' in record.getMessage():
            self.seconds.append(time.perf_counter())
            self.bytes.append(resident_bytes())


def measure():
    import train_imagenet
    from bmx_melius.data.small_images import open_digits
    from bmx_melius.reporting import LOG

    recorder = Recorder()
    LOG.addHandler(recorder)
    flags = f'--model meliusnet_flex --dataset digits --batch-size {BATCH_SIZE} --num-epochs {EPOCHS} --log-interval 1 --track-flips'
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
        further = ['--model-options', json.dumps(OPTIONS), '--save-dir', os.path.join(folder, 'run')]
        status = train_imagenet.main([*flags.split(), *further])
    updates = len(open_digits().train) // BATCH_SIZE * EPOCHS
    assert status == 0 and len(recorder.bytes) == updates, (status, len(recorder.bytes), updates)
    steps = [after - before for before, after in zip(recorder.seconds, recorder.seconds[1:])]
    return {
        'updates': len(recorder.bytes),
        'megabytes_after_warm_up': recorder.bytes[WARM_UP] / 2**20,
        'megabytes_at_the_end': recorder.bytes[-1] / 2**20,
        'first_step_ms': 1000 * statistics.median(steps[WARM_UP : WARM_UP + WINDOW]),
        'last_step_ms': 1000 * statistics.median(steps[-WINDOW:]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    args = parser.parse_args()
    result = measure()
    if args.json:
        print(json.dumps(result))
    else:
        print(
            '{updates:,} updates: resident memory {megabytes_after_warm_up:.0f} MB after 200 of them, {megabytes_at_the_end:.0f} MB '
            'at the end; a step takes {first_step_ms:.1f} ms then, {last_step_ms:.1f} ms at the end'.format(**result)
        )


if __name__ == '__main__':
    main()
