"""An ONNX model in ONNX Runtime, with all of its optimizations."""

PACKAGES = {'onnxruntime': 'onnxruntime'}
_TYPES = {'tensor(float16)': 'float16', 'tensor(double)': 'float64'}  # of inputs that are not float32


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: file."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(arguments['file'], options, providers=['CPUExecutionProvider'])
    (source,) = session.get_inputs()
    if not fits(source.shape, array.shape):  # images with the channels last, which the packed network has second
        array = np.ascontiguousarray(np.moveaxis(array, 1, -1))
    array = array.astype(_TYPES.get(source.type, array.dtype))
    return lambda: session.run(None, {source.name: array}), {}


def fits(declared, shape):
    """Return whether an array of this shape has the sizes of a declared input; an open size is None or a name."""
    return len(declared) == len(shape) and all(not isinstance(size, int) or size == given for size, given in zip(declared, shape))
