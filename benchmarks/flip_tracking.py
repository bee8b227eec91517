"""Benchmark of the time that ``--track-flips`` adds to a training step.

In each step, the training (forward, backward and update) and the counting of sign changes are timed separately, so that other load on the
machine affects both alike. Run: ``python benchmarks/flip_tracking.py``.

Measured on two cores of a Xeon (AVX-512) under other load with real-time priority (``chrt -r 1``), meliusnet22 at 224x224, one run:
batch 16: step 2960 ms, counting 5.9 ms (0.20 %); batch 32: 6100 ms, 6.5 ms (0.11 %). Batch 64 needs more than the 18 GB that were free;
counting does not depend on the batch size. Weights were random and images noise; counting takes longer the more weights flip per update.
"""

import argparse
import os
import statistics
import time

BATCH_SIZES = (16, 32)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=BATCH_SIZES, help='batch sizes (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=10, help='timed steps of each batch size (default: %(default)s)')
    return parser.parse_args()


def make_step(args, batch_size):
    """Return functions for the two parts of a step, and the number of binary weights."""
    import mxnet as mx

    import bmx_melius  # noqa: F401  registers radam
    from bmx_melius.training.recording.flips import FlipCounter
    from model_zoo import get_model

    net = get_model(args.model)
    net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = mx.gluon.Trainer(net.collect_params(), 'radam', {'learning_rate': 0.002}, update_on_kvstore=False)
    images = mx.nd.random.normal(shape=(batch_size, 3, args.input_size, args.input_size))
    labels = mx.nd.random.randint(0, 1000, shape=(batch_size,)).astype('float32')
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    net(images).wait_to_read()
    flips = FlipCounter(net, 20000)
    flips.start({})

    def train():
        with mx.autograd.record():
            value = loss(net(images), labels)
        value.backward()
        trainer.step(batch_size)
        mx.nd.waitall()

    return train, flips.add_update, flips.sizes[0]


def main():
    args = parse_arguments()
    # Settings of train_imagenet.py. MXNet reads them during its import, so it is imported later.
    os.environ['OMP_NUM_THREADS'] = str(args.threads)
    os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    steps = {batch_size: make_step(args, batch_size) for batch_size in args.batch_sizes}
    seconds = {batch_size: ([], []) for batch_size in steps}
    for repetition in range(-2, args.repetitions):  # the first two warm up: memory is planned in the first step
        for batch_size, (train, count, _) in steps.items():
            for part, values in zip((train, count), seconds[batch_size]):
                start = time.perf_counter()
                part()
                if repetition >= 0:
                    values.append(time.perf_counter() - start)
    for batch_size, (_, _, weights) in steps.items():
        train, count = (1000 * statistics.median(values) for values in seconds[batch_size])
        print(
            f'{args.model}, {weights:,} binary weights, batch {batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads: '
            f'step {train:.0f} ms, counting {count:.1f} ms more ({count / train:.2%})'
        )


if __name__ == '__main__':
    main()
