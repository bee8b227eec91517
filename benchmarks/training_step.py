"""Benchmark of a training step of a binary network against its full-precision counterpart.

That is the same graph with identity instead of quantizers.

Both networks run alternately in one process, so that other load on the machine affects both alike; the result is the ratio of the median
times. Run: ``python benchmarks/training_step.py`` (``--help`` for sizes). ``--memory`` adds the peak memory of three steps,
each network in a new process, without that of the imported MXNet. ``--processor-time`` is for machines with other load.

Measured on two cores of an idle Xeon (AVX-512), meliusnet22, batch 16 at 224x224: 1.33 to 1.36 with the defaults below, 1.37 in one thread.
Composition of the difference in a step of 1254 ms against 956 ms (batch 8, each operator timed separately): 49 ms for masking the gradient,
45 for converting oneDNN's blocked layout to the plain one, 36 for the last addition, 33 + 31 for product and difference, 24 + 24 + 21 for
absolute value and comparisons, 17 for halving, 15 for converting the bits for the convolution; the weights take about 1 %.

Dense networks now use `bmx_melius.nn.channels.concat`, which does not leak memory. It takes the same time in both networks, 5 to 12 % of a
binary step more than MXNet's concatenation (two cores, batch 8, other load present).

Rejected alternatives, with the ratio of the current form in the same run:

- MXNet's default threads for elementwise operators (one): 1.57 against 1.32. Hence the environment variables below.
- maxima and minima for the mask, which need no special case for infinities: 1.45 against 1.31; ``clip``: 1.61 against 1.52;
  ``where``: 1.53 against 1.38
- adding zeros that carry the gradient to the bits: 1.42 against 1.37; one ``add_n`` of three terms: equal
- halving the gradient at the output by ``gradientmultiplier`` instead of in the mask: equal
- no reshape to the plain layout (each operator converts separately): 1.58 against 1.52; ``x + 0`` instead: 1.39 against 1.30
- plain layout from the output of the convolution on: 1.54 against 1.42, because batch normalization is slower there

Peak memory, meliusnet22, batch 16 at 112x112, MiB: 1107, full precision 811, ratio 1.36; with MXNet's default memory plan 1217 and 805,
ratio 1.51. Additional arrays kept for the backward pass: the input and the mask of each quantizer, and the signs of the weights.

Measured at this size with ``--input-size 112 --threads 1 --processor-time`` on an EPYC (Zen 4, AVX-512) with much other load, three
processes: ratio 1.139, 95 % interval 1.130 to 1.152 (40 pairs), 1.155, 1.122 to 1.185 (24 pairs), 1.170, 1.147 to 1.206 (30 pairs). The
processes differ by more than the interval of one: these runs do not decide whether the ratio is below 1.15.
Constants of binary convolutions are computed from one sum per filter (a layer with few positions: 0.88 of the time before). A step of the
same network in Larq 0.13.3 with TensorFlow 2.15 took 2.5 and 2.9 times the processor time of ours; only two pairs of steps were measured.

Composition of a step of 1690 ms against 1481 ms, sampled by perf: 124 ms for normalization forward in both; 128 against 33 ms backward,
because the gradient has the plain layout, for which oneDNN's loops are compiled C++, not generated code, but the counterpart takes about
65 ms more in generated code (convolutions, normalization and conversions of layouts); 30 against 5 ms in two-term sums, and 138 ms in the
other elementwise operators: comparisons 27 and 15, products 23, 18 and 18 (the mask), differences 22, absolute value 15.

Rejected, with the ratio of the current form in the same run:

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

Rejected in the same way, in processor time, 8 to 10 steps of each in turns with the counterpart (16 in pairs for the last), with the ratio
of the current form in the same run. Values and gradients equal those of the current form, also at the floats next to the threshold and
zero:

- a mask by oneDNN's ``elu`` with slope 0.5 of x + q, q = -x where the gradient is kept, else negative and large: 1.188 against 1.161,
  and 37 MiB more memory
- the same with ``abs`` and a comparison instead of ``contrib.quadratic``: 1.176 against 1.161
- bits {0, 2} instead of {0, 1}, so that the mask is not halved, and ``relu`` of x + min(c (t^2 - x^2), 2 t) with c = 2^60: 1.150 against
  1.161, within the noise, and 97 MiB less memory (1007 instead of 1104). The gradient keeps its blocked layout, and normalization takes
  36 ms backward, but generated code, which includes the conversions, takes about 110 ms more. It changes the encoding between activation
  and convolution, which exported networks contain. ``relu`` halved by a product afterwards, which does not: 1505 MiB
- ``add_n`` instead of ``+`` for the last sum: 1.139 against 1.158 with 10 steps, but 1.000 (0.995 to 1.013) of the current time in 16 pairs
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=16, help='batch size (default: %(default)s)')
    parser.add_argument('--input-size', type=int, default=224, help='height and width (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=2, help='OpenMP threads (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=15, help='timed steps of each network (default: %(default)s)')
    parser.add_argument('--processor-time', action='store_true', help='measure processor time: for machines with other load')
    parser.add_argument('--memory', action='store_true', help='also measure the peak memory of a step, each network in a new process')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    return parser.parse_args()


def make_step(net, shape, classes=1000, optimizer=None):
    """Initialize a network; return a function that makes one training step on random images of this shape and waits for the result.

    `optimizer` are the name and the arguments of an optimizer; None: the step is a forward and backward pass.
    """
    import mxnet as mx

    net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.random.normal(shape=shape)
    labels = mx.nd.random.randint(0, classes, shape=shape[:1]).astype('float32')
    trainer = mx.gluon.Trainer(net.collect_params(), *optimizer, update_on_kvstore=False) if optimizer else None

    def step():
        with mx.autograd.record():
            value = loss(net(images), labels)
        value.backward()
        if trainer:
            trainer.step(shape[0])
        mx.nd.waitall()

    return step


def step_of(model, batch_size, input_size, bits):
    """Return the forward and backward pass of a network of the zoo."""
    import mxnet as mx

    from model_zoo import get_model

    mx.random.seed(0)
    return make_step(get_model(model, bits=bits), (batch_size, 3, input_size, input_size))


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
            step()
            seconds[name].append(clock() - start)
    return seconds


def median_seconds(steps, repetitions):
    """Return a dict of the median times of the functions of a dict, called in turns."""
    return {name: statistics.median(values) for name, values in step_seconds(steps, repetitions).items()}


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
    """Return the memory in bytes that three steps add, at their peak, to a process with MXNet; `arguments` are those of `step_of`."""
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
    arguments = {name: (args.model, args.batch_size, args.input_size, bits) for name, bits in (('binary', 1), ('full_precision', 32))}
    peaks = {name: in_new_process(peak_bytes, *arguments[name]) for name in arguments} if args.memory else None
    steps = {name: step_of(*arguments[name]) for name in arguments}
    seconds = step_seconds(steps, args.repetitions, time.process_time if args.processor_time else time.perf_counter)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio, low, high = ratio_interval(seconds['binary'], seconds['full_precision'])
    result = {
        'model': args.model,
        'batch_size': args.batch_size,
        'input_size': args.input_size,
        'threads': args.threads,
        'binary_ms': medians['binary'] * 1e3,
        'full_precision_ms': medians['full_precision'] * 1e3,
        'clock': 'processor' if args.processor_time else 'wall',
        'ratio': ratio,
        'ratio_interval': [low, high],
    }
    if peaks:
        result.update({f'{name}_peak_bytes': peak for name, peak in peaks.items()}, memory_ratio=peaks['binary'] / peaks['full_precision'])
    if args.json:
        print(json.dumps(result))
    else:
        print(f'{args.model}, batch {args.batch_size}, {args.input_size}x{args.input_size}, {args.threads} threads, forward + backward:')
        print(f'binary {result["binary_ms"]:.0f} ms, full precision {result["full_precision_ms"]:.0f} ms of {result["clock"]} time')
        print(f'ratio {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f} ({args.repetitions} pairs)')
        if peaks:
            binary, full = (peaks[name] / 2**20 for name in ('binary', 'full_precision'))
            print(f'peak memory: binary {binary:.0f} MiB, full precision {full:.0f} MiB, ratio {binary / full:.3f}')


if __name__ == '__main__':
    main()
