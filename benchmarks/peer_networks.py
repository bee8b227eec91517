"""Networks of the zoo in other libraries, for `training_step.py --compare`, and the process that trains them.

A library is a class with the layers that `network` calls, each a method that takes maps and returns one. `larq_training.py` and
`pytorch_training.py` contain the classes.
"""

import sys
import time

# Blocks of each stage, and channels of the transitions between them (model_zoo/meliusnet.py).
DENSE = {
    'meliusnet22': ((4, 5, 4, 4), (160, 224, 256)),
    'binary_densenet28': ((6, 6, 6, 5), (160, 192, 256)),
}
RESIDUAL = {'resnet_e18': (4, 4, 4, 4)}  # layers of each stage (model_zoo/residual.py)
NAMES = (*DENSE, *RESIDUAL)


def network(layers, image, name, classes=1000):
    """Return the class scores of the network `name` of the zoo for images, with the layers of a library."""
    x = layers.norm(image) if name in RESIDUAL else image
    for channels, stride, groups in ((32, 2, 1), (32, 1, 4), (64, 1, 8)):
        x = layers.relu(layers.norm(layers.convolution(x, channels, 3, stride, groups)))
    x = layers.max_pool(x, 3)
    x = _residual_stages(layers, x, RESIDUAL[name]) if name in RESIDUAL else _dense_stages(layers, x, name)
    return layers.scores(layers.relu(x), classes)


def _dense_stages(layers, x, name):
    def binary(x):
        return layers.binary(layers.norm(x), 64)

    blocks, widths = DENSE[name]
    for count, width in zip(blocks, (*widths, None)):
        for _ in range(count):
            new = binary(x)
            if name == 'meliusnet22':
                new = layers.add(new, binary(layers.concatenate(x, new)))
            x = layers.concatenate(x, new)
        if width is not None:
            x = layers.convolution(layers.relu(layers.max_pool(layers.norm(x), 2)), width, 1)
    return layers.norm(x)


def _residual_stages(layers, x, counts):
    x = layers.norm(x)
    for number, count in enumerate(counts):
        channels = 64 * 2**number
        for index in range(count):
            halves = number > 0 and index == 0
            shortcut = layers.norm(layers.convolution(layers.average_pool(x), channels, 1)) if halves else x
            x = layers.add(layers.norm(layers.binary(x, channels, 2 if halves else 1)), shortcut)
    return x


def process_bytes(key):
    """Return a figure of /proc/self/status in bytes: ``VmRSS``, the resident memory, or ``VmHWM``, its peak since the process started."""
    with open('/proc/self/status', encoding='ascii') as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ':'))


def serve(import_library, make_step):
    """Make one step for each line of standard input; answer with its wall time and processor time in seconds, and the peak memory.

    The arguments of the process are the name of the network, the batch size, the size of the images, the threads, and 1 to update the
    weights, else 0. The memory is what the process has had more, at its peak, than after the import of the library.
    """
    name, *numbers = sys.argv[1:]
    batch_size, size, threads, update = map(int, numbers)
    library = import_library(threads)
    before = process_bytes('VmRSS')
    step = make_step(library, name, batch_size, size, bool(update))
    for _ in sys.stdin:
        start, processor_start = time.perf_counter(), time.process_time()
        step()
        print(time.perf_counter() - start, time.process_time() - processor_start, process_bytes('VmHWM') - before, flush=True)
