"""Matrix products in ONNX Runtime, for `matrix_products.py`, which starts this in another environment. Its weights and inputs are here.

Commands on standard input are a form, a size and a number of columns; answered is the time of a run in seconds.
"""

import sys
import time

import numpy as np

BLOCK = 128  # weights with a scale of their own
OPSET, DOMAIN = 21, 'com.microsoft'


def levels_of(bits):
    """Return the range of integers of so many bits; of 8 those of 7, because ONNX Runtime's sums of others overflow without VNNI."""
    bits = min(bits, 7)
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def weights_of(size, bits):
    """Return integers of so many bits, int8 (filters, size)."""
    low, high = levels_of(bits)
    return np.random.RandomState(size + bits).randint(low, high + 1, (size, size)).astype(np.int8)


def inputs_of(size, columns):
    """Return numbers that are bytes, float32 (columns, size)."""
    return np.random.RandomState(columns).randint(0, 256, (columns, size)).astype(np.float32)


def few_bits(weight, bits, accuracy):
    """Return the nodes of `MatMulNBits` and their constants: weights (filters, blocks, bytes), scales, and the zero point by default."""
    count, inner = weight.shape
    numbers = (weight - levels_of(bits)[0]).astype(np.uint8).reshape(count, inner // BLOCK, -1, 8 // bits)
    packed = np.bitwise_or.reduce(numbers << np.arange(0, 8, bits, dtype=np.uint8), axis=3)
    facts = {'K': inner, 'N': count, 'bits': bits, 'block_size': BLOCK, 'accuracy_level': accuracy, 'domain': DOMAIN}
    return [('MatMulNBits', ['x', 'w', 's'], ['y'], facts)], {'w': packed, 's': np.ones((count, inner // BLOCK), np.float32)}


def dynamic(weight):
    """Return the nodes of a product of bytes whose range is found in the inputs, and of their scaling, and their constants."""
    nodes = [
        ('DynamicQuantizeLinear', ['x'], ['q', 'scale', 'zero'], {}),
        ('MatMulInteger', ['q', 'w', 'zero'], ['i'], {}),
        ('Cast', ['i'], ['f'], {'to': 1}),
        ('Mul', ['f', 'scale'], ['y'], {}),
    ]
    return nodes, {'w': np.ascontiguousarray(weight.T)}


def bytes_only(weight):
    """Return the node of a product of bytes with sums of 32 bits, and its constant."""
    return [('MatMulInteger', ['x', 'w'], ['y'], {})], {'w': np.ascontiguousarray(weight.T)}


FORMS = {  # name -> (bits of weights, nodes and constants of a weight, whether inputs are bytes)
    'MatMulNBits, 4 bits, accuracy_level=4': (4, lambda weight: few_bits(weight, 4, 4), False),
    'MatMulNBits, 2 bits, accuracy_level=4': (2, lambda weight: few_bits(weight, 2, 4), False),
    'MatMulNBits, 4 bits, accuracy_level=0': (4, lambda weight: few_bits(weight, 4, 0), False),
    'MatMulNBits, 2 bits, accuracy_level=0': (2, lambda weight: few_bits(weight, 2, 0), False),
    'dynamic int8 MatMul': (8, dynamic, False),
    'MatMulInteger of bytes': (8, bytes_only, True),
    'float32 MatMul': (8, lambda weight: ([('MatMul', ['x', 'w'], ['y'], {})], {'w': weight.T.astype(np.float32)}), False),
}


def session_of(form, size):
    """Return a session of one thread; its results are compared with NumPy's."""
    import onnx
    import onnxruntime

    bits, make, takes_bytes = FORMS[form]
    weight = weights_of(size, bits)
    nodes, constants = make(weight)
    kind = onnx.TensorProto.UINT8 if takes_bytes else onnx.TensorProto.FLOAT
    result = onnx.TensorProto.INT32 if takes_bytes else onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(name, inputs, outputs, **facts) for name, inputs, outputs, facts in nodes],
        'product',
        [onnx.helper.make_tensor_value_info('x', kind, ['columns', size])],
        [onnx.helper.make_tensor_value_info('y', result, ['columns', size])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [onnx.helper.make_opsetid('', OPSET), onnx.helper.make_opsetid(DOMAIN, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
    x = inputs_of(size, 2)
    (found,) = session.run(None, {'x': x.astype(np.uint8) if takes_bytes else x})
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    if np.abs(found - expected).max() > 0.02 * np.abs(expected).max():
        raise SystemExit(f'{form} computes something else: {found[0, :3]}, not {expected[0, :3]}')
    return session, takes_bytes


def main():
    """Answer commands."""
    sessions = {}
    for line in sys.stdin:
        form, size, columns = line.rstrip('\n').split('\t')
        if (form, size) not in sessions:
            sessions[form, size] = session_of(form, int(size))
        session, takes_bytes = sessions[form, size]
        x = inputs_of(int(size), int(columns))
        fed = {'x': x.astype(np.uint8) if takes_bytes else x}
        session.run(None, fed)  # the process has waited
        start = time.perf_counter()
        session.run(None, fed)
        print(time.perf_counter() - start, flush=True)


if __name__ == '__main__':
    main()
