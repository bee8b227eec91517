"""Benchmark of a training step (forward and backward) of networks against each other.

By default a binary network and its full-precision counterpart: the same graph with identity instead of quantizers. `--models` compares
several networks with the first one. All run alternately in one process, so that other load on the machine affects them alike; the result
is the ratio of the median times. Run: ``python benchmarks/training_step.py`` (``--help`` for sizes). ``--memory`` adds the peak memory of
three steps, each network in a new process, without the imported MXNet. ``--processor-time`` is for machines with other load.
benchmarks/README.md has results.

Slower or larger than the present form of a binary layer, in turns with it: maxima and minima, ``clip`` or ``where`` for the mask of the
gradient, masks of type uint8 (MXNet plans four bytes for every type), ``Activation``, ``softrelu``, ``elu`` or ``hard_sigmoid`` as the
mask, no reshape to the plain layout before the comparison, one ``add_n`` for the last sum, recomputation in the backward pass (MXNet 1.9.1
has it for bound symbols only). Bits {0, 2} need 9 % less memory in the same time, but change the encoding in exported networks.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--models', nargs='+', metavar='MODEL', help='compare these networks with the first of them')
    parser.add_argument(
        '--model-options', type=json.loads, default={}, metavar='JSON', help='arguments of get_model for networks that take them'
    )
    parser.add_argument('--compare', choices=['larq'], help='also meliusnet22 in Larq on TensorFlow, in another process')
    parser.add_argument('--batch-size', type=int, default=16, help='batch size (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=15, help='timed steps of each network (default: %(default)s)')
    parser.add_argument('--processor-time', action='store_true', help='measure processor time: for machines with other load')
    parser.add_argument('--memory', action='store_true', help='also measure the peak memory of a step, each network in a new process')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    return parser.parse_args()


def step_of(model, batch_size, input_size, options):
    """Return a function that makes a forward and backward pass of a network of the zoo on random images, and waits for the result."""
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

    def step():
        with mx.autograd.record():
            value = loss(net(images), labels)
        value.backward()
        mx.nd.waitall()

    return step


def python_with_larq():
    """Return the Python that has Larq: this one, or that of an environment among the temporary files, made if it is not there."""
    if importlib.util.find_spec('larq'):
        return sys.executable
    folder = pathlib.Path(tempfile.gettempdir(), 'bmx-melius-larq')
    python = folder / 'bin' / 'python'
    if not (folder / 'complete').exists():
        subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', 'tensorflow-cpu==2.13.1', 'larq==0.13.3'], check=True, stdout=sys.stderr)
        (folder / 'complete').touch()
    return python


def larq_step(python, batch_size, input_size, threads):
    """Return a function that makes a step of meliusnet22 in Larq and returns its wall time and processor time."""
    worker = pathlib.Path(__file__).with_name('larq_training.py')
    command = [python, worker, str(batch_size), str(input_size), str(threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def step():
        process.stdin.write('\n')
        process.stdin.flush()
        return tuple(map(float, process.stdout.readline().split()))

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


def process_bytes(key):
    """Return a figure of /proc/self/status in bytes: ``VmRSS``, the resident memory, or ``VmHWM``, its peak since the process started."""
    with open('/proc/self/status', encoding='ascii') as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ':'))


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
    forms = {name: (name, {}) for name in args.models or ()} or {
        'binary': (args.model, {'bits': 1}),
        'full precision': (args.model, {'bits': 32}),
    }
    arguments = {
        name: (model, args.batch_size, args.input_size, {**args.model_options, **options}) for name, (model, options) in forms.items()
    }
    peaks = {name: in_new_process(peak_bytes, *arguments[name]) for name in arguments} if args.memory else None
    steps = {name: step_of(*arguments[name]) for name in arguments}
    if args.compare:
        steps['larq'] = larq_step(python_with_larq(), args.batch_size, args.input_size, args.threads)
    seconds = step_seconds(steps, args.repetitions, time.process_time if args.processor_time else time.perf_counter)
    compared = (args.models or ['full precision'])[0]
    result = {
        name: {'ms': statistics.median(values) * 1e3, 'least_ms': min(values) * 1e3, 'ratio': ratio_interval(values, seconds[compared])}
        for name, values in seconds.items()
    }
    for name, peak in (peaks or {}).items():
        result[name].update(peak_bytes=peak, memory_ratio=peak / peaks[compared])
    if args.json:
        print(json.dumps(result))
        return
    clock = 'processor' if args.processor_time else 'wall'
    print(f'batch {args.batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads, {clock} time of forward + backward:')
    for name, row in result.items():
        ratio, low, high = row['ratio']
        memory = f', {row["peak_bytes"] / 2**20:.0f} MiB, ratio {row["memory_ratio"]:.3f}' if 'peak_bytes' in row else ''
        times = f'{row["ms"]:7.0f} ms (least {row["least_ms"]:.0f})'
        print(f'{name:28s} {times}, ratio {ratio:.3f} (95 % interval {low:.3f} to {high:.3f}){memory}')


if __name__ == '__main__':
    main()
