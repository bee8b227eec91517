"""Run a packed network from Python with NumPy and libbmx_melius only, without the package bmx_melius.

    python run_packed.py PREFIX-0000.params image.bin [LIBRARY]

The file has one image in the shape that the network was converted with, of pixels that are prepared as in training (channels first):
`numpy.ndarray.tofile` and ``bmx-classify --save-input`` write such files. The first output is printed, the scores of the classes, a number
in each line. LIBRARY is the path of the shared library; without it the system looks for libbmx_melius.so, in the folders of ldconfig and
of LD_LIBRARY_PATH.
"""

import ctypes
import math
import os
import sys

import numpy as np

BMX_EXACT = 0
SIZES, SIZE, POINTERS = ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
FUNCTIONS = {  # of bmx_melius.h: result, arguments
    'bmx_last_error': (ctypes.c_char_p,),
    'bmx_program_load': (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int),
    'bmx_program_destroy': (None, ctypes.c_void_p),
    'bmx_program_inputs': (SIZE, ctypes.c_void_p),
    'bmx_program_outputs': (SIZE, ctypes.c_void_p),
    'bmx_program_input_shape': (ctypes.c_int, ctypes.c_void_p, SIZE, SIZES),
    'bmx_program_infer': (ctypes.c_int, ctypes.c_void_p, SIZES, SIZES, ctypes.POINTER(ctypes.c_int)),
    'bmx_program_run': (ctypes.c_int, ctypes.c_void_p, SIZES, POINTERS, POINTERS, ctypes.c_int),
}


class Network:
    """A packed network with one input. Several threads may call it at once: ctypes releases the lock of the interpreter during a run.

    Parameters
    ----------
    path : str
        PREFIX-0000.params.
    library : str
        Name or path of libbmx_melius.

    Raises
    ------
    RuntimeError
        With the reason that the library gives.
    """

    def __init__(self, path, library='libbmx_melius.so'):
        self._program = None
        self._library = ctypes.CDLL(library)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._program = self._library.bmx_program_load(os.fsencode(path), BMX_EXACT)
        self._require(self._program is not None)
        if self._library.bmx_program_inputs(self._program) != 1:
            raise RuntimeError('this example runs networks with one input')
        shape = (ctypes.c_int64 * 4)()
        self.input_shape = tuple(shape[: self._library.bmx_program_input_shape(self._program, 0, shape)])

    def __del__(self):
        if self._program is not None:
            self._library.bmx_program_destroy(self._program)

    def __call__(self, x, threads=0):
        """Return the outputs, float32 arrays, for an input (batch, channels, height, width) or (batch, channels)."""
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != len(self.input_shape):
            raise ValueError(f'the input must have {len(self.input_shape)} dimensions, not {x.ndim}')
        count = self._library.bmx_program_outputs(self._program)
        sizes, shapes, ranks = (ctypes.c_int64 * 4)(*x.shape), (ctypes.c_int64 * (4 * count))(), (ctypes.c_int * count)()
        self._require(self._library.bmx_program_infer(self._program, sizes, shapes, ranks) == 0)
        outputs = [np.empty(shapes[4 * i : 4 * i + ranks[i]], np.float32) for i in range(count)]
        inputs, places = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * count)(*(y.ctypes.data for y in outputs))
        self._require(self._library.bmx_program_run(self._program, sizes, inputs, places, threads) == 0)
        return outputs

    def _require(self, succeeded):
        if not succeeded:
            raise RuntimeError(self._library.bmx_last_error().decode())


def main(params, image, *library):
    """Print the first output for the image in a file."""
    network = Network(params, *library)
    numbers = np.fromfile(image, np.float32)
    if numbers.size != math.prod(network.input_shape):
        raise RuntimeError(f'{image} has {numbers.size} numbers; the network takes {network.input_shape}')
    for score in network(numbers.reshape(network.input_shape))[0].ravel():
        print(f'{score:.9g}')


if __name__ == '__main__':
    if len(sys.argv) not in (3, 4):
        sys.exit('error: usage: run_packed.py PREFIX-0000.params image.bin [LIBRARY]')
    try:
        main(*sys.argv[1:])
    except (OSError, RuntimeError) as error:
        sys.exit(f'error: {error}')
