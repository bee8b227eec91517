"""Benchmark of a training step of the residual networks of other methods, compared with ResNetE 18, which has the same convolutions.

The networks run alternately in one process, so that other load on the machine affects all alike; the result is the ratio of the median
times. Run: ``python benchmarks/method_steps.py`` (``--help`` for sizes).

Measured with the defaults below on one core of an EPYC (Zen 4, AVX-512) with other load present, in two runs each, with MXNet's
broadcasts, PReLU and means (before) and with `bmx_melius.nn.channelwise` and the functions of `bmx_melius.nn.channels` (after):

    network                     before        after
    resnet18_bnn                0.91 - 0.99   0.92 - 1.04
    resnet18_xnor               3.21 - 3.46   1.21 - 1.46
    resnet18_xnorpp             1.60 - 1.77   1.21 - 1.30
    resnet18_strong_baseline    3.70 - 4.27   1.52 - 1.54
    real_to_binary18            4.51 - 5.23   1.48 - 1.62
    reactnet18                  5.73 - 5.98   1.81 - 1.90

Single operators on maps (64, 16, 32, 32) with gradient, on the same machine, ms forward and backward: ``broadcast_mul`` by numbers of
channels 2 - 4 + 44 - 91, as a normalization 2 + 2 - 5, as a product with repeated numbers 3 - 4 + 3 - 6; PReLU 8 - 16 + 50 - 110, as a sum
of two terms 9 + 8; product with a gate 1 - 2 + 19 - 42, with a repeated gate 4 + 2 - 4.
"""

import argparse
import json

from training_step import make_step, median_seconds, set_environment

REFERENCE = 'resnet_e18'
MODELS = ('resnet18_bnn', 'resnet18_xnor', 'resnet18_xnorpp', 'resnet18_strong_baseline', 'real_to_binary18', 'reactnet18')
CLASSES = 62


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', nargs='+', default=MODELS, help='names in the zoo (default: %(default)s)')
    parser.add_argument('--init-features', type=int, default=16, help='channels after the stem (default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=64, help='batch size (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=32, help='height and width of the images (default: %(default)s)')
    parser.add_argument('--channels', type=int, default=1, help='channels of the images (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=5, help='timed steps of each network (default: %(default)s)')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    return parser.parse_args()


def step_of(name, args):
    """Return the training step of a network: forward, backward, update."""
    from model_zoo import get_model

    sized = {'input_size': args.input_size} if name.endswith('xnorpp') else {}
    net = get_model(name, initial_layers='thumbnail', init_features=args.init_features, classes=CLASSES, **sized)
    shape = (args.batch_size, args.channels, args.input_size, args.input_size)
    return make_step(net, shape, CLASSES, ('adam', {'learning_rate': 1e-3}))


def main():
    args = parse_arguments()
    set_environment(args.threads)
    steps = {name: step_of(name, args) for name in (REFERENCE, *args.models)}
    medians = median_seconds(steps, args.repetitions)
    if args.json:
        print(json.dumps({name: {'ms': value * 1e3, 'ratio': value / medians[REFERENCE]} for name, value in medians.items()}))
        return
    print(f'{args.init_features} channels, batch {args.batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads:')
    for name, value in medians.items():
        print(f'{name:28s} {value * 1e3:7.0f} ms   {value / medians[REFERENCE]:.2f}')


if __name__ == '__main__':
    main()
