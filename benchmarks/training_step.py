"""Benchmark of a training step of a binary network against its float twin, the same graph with identity instead of quantizers.

Both networks run alternately in one process, so that other load on the machine affects both alike; the result is the ratio of the median
times. Run: ``python benchmarks/training_step.py`` (``--help`` for sizes). ``--memory`` adds the peak memory of three steps,
each network in a new process, without that of the imported MXNet.

Measured on two cores of an idle Xeon (AVX-512), meliusnet22, batch 16 at 224x224: 1.33 to 1.36 with the defaults below, 1.37 in one thread.
Composition of the difference in a step of 1254 ms against 956 ms (batch 8, each operator timed separately): 49 ms for masking the gradient,
45 for converting oneDNN's blocked layout to the plain one, 36 for the last addition, 33 + 31 for product and difference, 24 + 24 + 21 for
absolute value and comparisons, 17 for halving, 15 for converting the bits for the convolution; the weights take about 1 %.

Dense networks now use `bmx_melius.channels.concat`, which does not leak memory. It takes the same time in both networks, 5 to 12 % of a
binary step more than MXNet's concatenation (two cores, batch 8, other load present).

Rejected alternatives, with the ratio of the current form in the same run:

- MXNet's default threads for elementwise operators (one): 1.57 against 1.32. Hence the environment variables below.
- maxima and minima for the mask, which need no special case for infinities: 1.45 against 1.31; ``clip``: 1.61 against 1.52;
  ``where``: 1.53 against 1.38
- adding zeros that carry the gradient to the bits: 1.42 against 1.37; one ``add_n`` of three terms: equal
- halving the gradient at the output by ``gradientmultiplier`` instead of in the mask: equal
- no reshape to the plain layout (each operator converts separately): 1.58 against 1.52; ``x + 0`` instead: 1.39 against 1.30
- plain layout from the output of the convolution on: 1.54 against 1.42, because batch normalization is slower there

Peak memory, meliusnet22, batch 16 at 112x112, MiB: 1107, float twin 811, ratio 1.36; with MXNet's default memory plan 1217 and 805, ratio
1.51. Additional arrays kept for the backward pass: the input and the mask of each quantizer, and the signs of the weights.

Measured at this size in one thread of an EPYC (Zen 4) with much other load, in processor time, so that differences of a few percent are
uncertain. Ratio to the twin: 1.18 to 1.20 before, 1.12 to 1.17 with constants computed from one sum per filter (a layer with few positions:
0.88 of the time before). A step of the same network in Larq 0.13.3 with TensorFlow 2.15 took 2.5 and 2.9 times the processor time
of ours; only two pairs of steps were measured. Rejected, with the ratio of the current form in the same run:

- recomputation in the backward pass (``MXNET_BACKWARD_DO_MIRROR``, ``force_mirroring``): MXNet 1.9.1 supports it for bound symbols, but
  builds the gradient of hybridized blocks without it; with the variable neither memory nor time changed
- masks of type uint8: MXNet plans four bytes per element for every type, so they save nothing
- ``clip`` or ``where``, which need one array less: about four times as long as a product, forward and backward
- the mask as ``Activation('relu')`` of a sum that is positive where the gradient is not cancelled, which keeps only its output: 8 % less
  memory, but its gradient is not halved; halved afterwards 1.21 against 1.18. ``softrelu`` halves it: 1.23, and 3 % more memory;
  ``elu`` as well: 1.14, within the noise, and also 3 % more memory
- the mask as ``hard_sigmoid``, which needs one array and halves the gradient: 1.37 against 1.20, and 1.6 times the memory; ``relu``
  instead of ``Activation``: 1.27 against 1.18, and 1.6 times the memory
- other values of ``NNVM_EXEC_MATCH_RANGE`` than the one that MXNet's search selects: 1 needs 16 % more memory than the default, 2 and 4
  need 6 to 7 % less, the search 9 % less
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=16, help='batch size (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=15, help='timed steps of each network (default: %(default)s)')
    parser.add_argument('--memory', action='store_true', help='also measure the peak memory of a step, each network in a new process')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    return parser.parse_args()


def make_step(model, batch_size, input_size, bits):
    """Return a function that runs one forward and backward pass and waits for the result."""
    import mxnet as mx

    from model_zoo import get_model

    mx.random.seed(0)
    net = get_model(model, bits=bits)
    net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    net.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.random.normal(shape=(batch_size, 3, input_size, input_size))
    labels = mx.nd.random.randint(0, 1000, shape=(batch_size,)).astype('float32')
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True, static_shape=True)

    def step():
        with mx.autograd.record():
            value = loss(net(images), labels)
        value.backward()
        mx.nd.waitall()

    return step


def set_environment(threads):
    """Set the environment of train_imagenet.py. MXNet reads most of it during its import, so call this before."""
    os.environ['OMP_NUM_THREADS'] = str(threads)
    os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
    os.environ.setdefault('NNVM_AUTO_SEARCH_MATCH_RANGE', '1')
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')


def median_seconds(steps, repetitions):
    """Call the functions of a dict in turns; return a dict of their median times. Two untimed calls before plan the memory."""
    seconds = {name: [] for name in steps}
    for _ in range(2):
        for step in steps.values():
            step()
    for _ in range(repetitions):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def process_bytes(key):
    """Return a figure of /proc/self/status in bytes: ``VmRSS``, the resident memory, or ``VmHWM``, its peak since the process started."""
    with open('/proc/self/status', encoding='ascii') as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ':'))


def peak_bytes(*arguments):
    """Return the memory in bytes that three steps add, at their peak, to a process with MXNet; `arguments` are those of `make_step`."""
    import mxnet  # noqa: F401

    before = process_bytes('VmRSS')
    step = make_step(*arguments)
    for _ in range(3):
        step()
    return process_bytes('VmHWM') - before


def in_new_process(function, *arguments):
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(function, arguments)


def main():
    args = parse_arguments()
    set_environment(args.threads)
    arguments = {name: (args.model, args.batch_size, args.input_size, bits) for name, bits in (('binary', 1), ('twin', 32))}
    peaks = {name: in_new_process(peak_bytes, *arguments[name]) for name in arguments} if args.memory else None
    steps = {name: make_step(*arguments[name]) for name in arguments}
    medians = median_seconds(steps, args.repetitions)
    result = {
        'model': args.model,
        'batch_size': args.batch_size,
        'input_size': args.input_size,
        'threads': args.threads,
        'binary_ms': medians['binary'] * 1e3,
        'twin_ms': medians['twin'] * 1e3,
        'ratio': medians['binary'] / medians['twin'],
    }
    if peaks:
        result.update(binary_peak_bytes=peaks['binary'], twin_peak_bytes=peaks['twin'], memory_ratio=peaks['binary'] / peaks['twin'])
    if args.json:
        print(json.dumps(result))
    else:
        print(f'{args.model}, batch {args.batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads, forward + backward:')
        print(f'binary {result["binary_ms"]:.0f} ms, float twin {result["twin_ms"]:.0f} ms, ratio {result["ratio"]:.3f}')
        if peaks:
            binary, twin = (peaks[name] / 2**20 for name in ('binary', 'twin'))
            print(f'peak memory: binary {binary:.0f} MiB, float twin {twin:.0f} MiB, ratio {binary / twin:.3f}')


if __name__ == '__main__':
    main()
