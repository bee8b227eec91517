"""Benchmark of a training step (forward and backward, with `--update` also the optimizer) of networks against each other.

By default a binary network and its full-precision counterpart: the same graph with identity instead of quantizers. `--models` compares
several networks with the first one. `--compare` compares with the binary network: executed with MXNet's operators instead of fused ones,
in Larq on TensorFlow, or in PyTorch, the latter two in processes and environments of their own. All run alternately, so that other load on
the machine affects them alike; the result is the ratio of the median times. Run: ``python benchmarks/training_step.py`` (``--help`` for
sizes). ``--memory`` adds the peak memory of three steps, each network in a new process, without the imported library.
``--processor-time`` is for machines with other load. benchmarks/README.md has results.

Slower or larger than the present form of a binary layer, in turns with it: maxima and minima, ``clip`` or ``where`` for the mask of the
gradient, masks of type uint8 (MXNet plans four bytes for every type), ``Activation``, ``softrelu``, ``elu`` or ``hard_sigmoid`` as the
mask, no reshape to the plain layout before the comparison, one ``add_n`` for the last sum, recomputation in the backward pass (MXNet 1.9.1
has it for bound symbols only). Bits {0, 2} need 9 % less memory in the same time, but change the encoding in exported networks.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import subprocess
import time

from environments import python_with
from peer_networks import NAMES, process_bytes

# Libraries to compare with -> their packages.
PEERS = {
    'larq': ['tensorflow-cpu==2.13.1', 'larq==0.13.3'],
    'pytorch': ['torch==2.13.0', 'numpy<2'],
}
STOCK = 'stock'  # MXNet's operators instead of fused ones


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--models', nargs='+', metavar='MODEL', help='compare these networks with the first of them')
    parser.add_argument(
        '--model-options', type=json.loads, default={}, metavar='JSON', help='arguments of get_model for networks that take them'
    )
    parser.add_argument(
        '--compare',
        type=lambda text: text.split(','),
        default=[],
        metavar='LIST',
        help=f'also the binary network with {STOCK} operators of MXNet, and in other libraries: {", ".join((STOCK, *PEERS))}',
    )
    parser.add_argument('--update', action='store_true', help='also update the weights: by RAdam, in other libraries by Adam')
    parser.add_argument('--batch-size', type=int, default=16, help='batch size (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=15, help='timed steps of each network (default: %(default)s)')
    parser.add_argument('--processor-time', action='store_true', help='measure processor time: for machines with other load')
    parser.add_argument('--memory', action='store_true', help='also measure the peak memory of a step, each network in a new process')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    args = parser.parse_args()
    unknown = set(args.compare) - {STOCK, *PEERS}
    if unknown:
        parser.error(f'--compare takes {", ".join((STOCK, *PEERS))}, not {", ".join(sorted(unknown))}')
    if set(args.compare) & set(PEERS) and args.model not in NAMES:
        parser.error(f'other libraries have {", ".join(NAMES)}, not {args.model}')
    return args


def step_of(model, batch_size, input_size, options, update=False, stock=False):
    """Return a function that makes a training step of a network of the zoo on random images, and waits for the result.

    `update`: with the update of the weights; `stock`: with MXNet's operators instead of fused ones.
    """
    import mxnet as mx

    from model_zoo import get_model, takes_option

    mx.random.seed(0)
    net = get_model(model, **{name: value for name, value in options.items() if takes_option(model, name)})
    shape, classes = (batch_size, 3, input_size, input_size), options.get('classes', 1000)
    net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.random.normal(shape=shape)
    labels = mx.nd.random.randint(0, classes, shape=shape[:1]).astype('float32')
    trainer = mx.gluon.Trainer(net.collect_params(), 'radam', update_on_kvstore=False)

    def step():
        with mx.autograd.record():
            value = loss(net(images), labels)
        value.backward()
        if update:
            trainer.step(batch_size)
        mx.nd.waitall()

    with mxnet_operators() if stock else contextlib.nullcontext():
        step()  # prepares the graphs
    return step


@contextlib.contextmanager
def mxnet_operators():
    """Let graphs that are prepared in this context be executed with MXNet's operators."""
    import mxnet as mx

    class_of_graphs = mx.nd.CachedOp
    mx.nd.CachedOp = mx.nd._internal.CachedOp
    try:
        yield
    finally:
        mx.nd.CachedOp = class_of_graphs


def peer_step(peer, model, batch_size, input_size, threads, update):
    """Return a function that makes a step in another library and returns its wall time, processor time and the memory until then."""
    worker = pathlib.Path(__file__).with_name(f'{peer}_training.py')
    command = [python_with(peer, PEERS[peer]), worker, model, *map(str, (batch_size, input_size, threads, int(update)))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step():
        process.stdin.write('\n')
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise SystemExit(f'the process of {peer} has ended with status {process.wait()}')
        return tuple(map(float, answer.split()))

    return step


def set_environment(threads):
    """Set the environment of train_imagenet.py. MXNet reads most of it during its import, so call this before."""
    os.environ['OMP_NUM_THREADS'] = str(threads)
    os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
    os.environ.setdefault('NNVM_AUTO_SEARCH_MATCH_RANGE', '1')
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')


def step_seconds(steps, repetitions, clock=time.perf_counter):
    """Call the functions of a dict in turns; return a dict of the lists of their times. Two untimed calls before plan the memory."""
    seconds = {name: [] for name in steps}
    for _ in range(2):
        for step in steps.values():
            step()
    for _ in range(repetitions):
        for name, step in steps.items():
            start = clock()
            measured = step()  # a step in another process is measured there
            seconds[name].append(measured[clock is time.process_time] if measured else clock() - start)
    return seconds


def ratio_interval(numerators, denominators, resamples=2000):
    """Return the ratio of the medians of two lists of paired times and its 95 % interval, by resampling the pairs (bootstrap)."""
    pairs = list(zip(numerators, denominators))
    generator = random.Random(0)

    def ratio(sample):
        return statistics.median(first for first, _ in sample) / statistics.median(second for _, second in sample)

    ratios = sorted(ratio(generator.choices(pairs, k=len(pairs))) for _ in range(resamples))
    return ratio(pairs), ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples) - 1]


def peak_bytes(*arguments):
    """Return the memory in bytes that three steps add, at their peak, to a process with MXNet; `arguments` as for `step_of`."""
    import mxnet  # noqa: F401

    before = process_bytes('VmRSS')
    step = step_of(*arguments)
    for _ in range(3):
        step()
    return process_bytes('VmHWM') - before


def in_new_process(function, *arguments):
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(function, arguments)


def main():
    args = parse_arguments()
    set_environment(args.threads)
    forms = {name: (name, {}) for name in args.models or ()} or {'binary': (args.model, {'bits': 1})}
    if not args.models and not args.compare:
        forms['full precision'] = (args.model, {'bits': 32})
    arguments = {
        name: (model, args.batch_size, args.input_size, {**args.model_options, **options}, args.update)
        for name, (model, options) in forms.items()
    }
    if STOCK in args.compare:
        arguments[STOCK] = (*arguments['binary'], True)
    peaks = {name: in_new_process(peak_bytes, *arguments[name]) for name in arguments} if args.memory else {}
    steps = {name: step_of(*arguments[name]) for name in arguments}
    for peer in PEERS:
        if peer in args.compare:
            steps[peer] = peer_step(peer, args.model, args.batch_size, args.input_size, args.threads, args.update)
    seconds = step_seconds(steps, args.repetitions, time.process_time if args.processor_time else time.perf_counter)
    compared = next(reversed(forms)) if not args.models else args.models[0]
    result = {
        name: {'ms': statistics.median(values) * 1e3, 'least_ms': min(values) * 1e3, 'ratio': ratio_interval(values, seconds[compared])}
        for name, values in seconds.items()
    }
    if peaks:
        peaks.update({peer: steps[peer]()[2] for peer in PEERS if peer in steps})
    for name, peak in peaks.items():
        result[name].update(peak_bytes=peak, memory_ratio=peak / peaks[compared])
    if args.json:
        print(json.dumps(result))
        return
    clock = 'processor' if args.processor_time else 'wall'
    what = f'forward + backward{" + update" if args.update else ""}'
    print(f'{args.model}, batch {args.batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads, {clock} time of {what}:')
    for name, row in result.items():
        ratio, low, high = row['ratio']
        memory = f', {row["peak_bytes"] / 2**20:.0f} MiB, ratio {row["memory_ratio"]:.3f}' if 'peak_bytes' in row else ''
        times = f'{row["ms"]:7.0f} ms (least {row["least_ms"]:.0f})'
        print(f'{name:28s} {times}, ratio {ratio:.3f} (95 % interval {low:.3f} to {high:.3f}){memory}')


if __name__ == '__main__':
    main()
