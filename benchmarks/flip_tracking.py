"""Benchmark of the time that ``--track-flips`` adds to a training step.

In each step, the training (forward, backward and update) and the counting of sign changes are timed separately, so that other load on the
machine affects both alike. Run: ``python benchmarks/flip_tracking.py``.

Measured on two cores of a Xeon (AVX-512) under other load with real-time priority (``chrt -r 1``), meliusnet22 at 224x224, one run:
batch 16: step 2960 ms, counting 5.9 ms (0.20 %); batch 32: 6100 ms, 6.5 ms (0.11 %). Batch 64 needs more than the 18 GB that were free;
counting does not depend on the batch size. Weights were random and images noise; counting takes longer the more weights flip per update.
"""

import argparse

from training_step import make_step, median_seconds, set_environment

BATCH_SIZES = (16, 32)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=BATCH_SIZES, help='batch sizes (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=10, help='timed steps of each batch size (default: %(default)s)')
    return parser.parse_args()


def parts_of(args, batch_size):
    """Return functions for the two parts of a step, and the number of binary weights."""
    import bmx_melius  # noqa: F401  registers radam
    from bmx_melius.training.recording.flips import FlipCounter
    from model_zoo import get_model

    net = get_model(args.model)
    train = make_step(net, (batch_size, 3, args.input_size, args.input_size), optimizer=('radam', {'learning_rate': 0.002}))
    train()
    flips = FlipCounter(net, 20000)
    flips.start({})
    return train, flips.add_update, flips.sizes[0]


def main():
    args = parse_arguments()
    set_environment(args.threads)
    parts = {batch_size: parts_of(args, batch_size) for batch_size in args.batch_sizes}
    steps = {(batch_size, number): part for batch_size, of_step in parts.items() for number, part in enumerate(of_step[:2])}
    medians = median_seconds(steps, args.repetitions)
    for batch_size, (_, _, weights) in parts.items():
        train, count = (1000 * medians[batch_size, number] for number in range(2))
        print(
            f'{args.model}, {weights:,} binary weights, batch {batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads: '
            f'step {train:.0f} ms, counting {count:.1f} ms more ({count / train:.2%})'
        )


if __name__ == '__main__':
    main()
