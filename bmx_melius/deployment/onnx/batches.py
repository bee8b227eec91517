"""Models for a batch of several images as models for one image.

The cost of an import grows with the batch, and its result does not depend on it. Exporters write the batch into the shapes of inputs, and
into the sizes of `Reshape`, `Expand` and `Resize`.
"""

import numpy as np

from ...errors import UserError
from .evaluation import Evaluator
from .forms import constants
from .model import import_onnx_package

_SIZES = {'Reshape': 1, 'Expand': 1, 'Resize': 3}  # position of the input that has sizes of the result, the batch first


def evaluator_of_one_image(model):
    """Return an `Evaluator` of a model for one image; None where its batch is not more than two, or one image may give other results.

    What is changed is checked: each value must have twice as many rows for two images as for one, and the shape that it has in the given
    model where that is known without computing it; and no value of an image may depend on another image.
    """
    batches = {shape[0] for shape in model.inputs.values() if shape}
    if len(batches) != 1 or None in model.inputs.values() or None in batches or max(batches) <= 2:
        return None
    (batch,) = batches
    onnx, _ = import_onnx_package()
    try:
        one, two = (Evaluator(each, each.inputs) for each in (_cut(onnx, model, batch, count) for count in (1, 2)))
        if _has_shapes(one, two, _shapes(onnx, model.proto), batch) and _keeps_images_apart(two):
            return one
    except UserError:  # a model that cannot be computed for another batch
        pass
    return None


def _shapes(onnx, proto):
    """Return the shapes of values by name that can be inferred."""
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception as error:  # of C++
        raise UserError('the shapes cannot be inferred') from error
    found = {}
    for value in (*graph.value_info, *graph.output):
        axes = value.type.tensor_type.shape.dim if value.type.tensor_type.HasField('shape') else ()
        if axes and all(axis.dim_value > 0 for axis in axes):
            found[value.name] = tuple(axis.dim_value for axis in axes)
    return found


def _cut(onnx, model, batch, count):
    """Return a model for another number of images."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for entry in proto.graph.input:
        if entry.name in model.inputs:
            entry.type.tensor_type.shape.dim[0].dim_value = count
    for value in proto.graph.output:
        value.type.tensor_type.ClearField('shape')
    known = constants(onnx, proto)
    for node in proto.graph.node:
        position = _SIZES.get(node.op_type, len(node.input))
        sizes = known.get(node.input[position]) if position < len(node.input) else None
        if sizes is not None and sizes.ndim == 1 and sizes.size and sizes[0] > 0 and sizes[0] % batch == 0:
            name = f'{node.output[0]}_sizes_of_{count}'
            changed = np.concatenate([sizes[:1] // batch * count, sizes[1:]])
            proto.graph.initializer.append(onnx.numpy_helper.from_array(changed, name))
            node.input[position] = name
    return model.with_proto(proto)


def _has_shapes(one, two, shapes, batch):
    """Return whether the first axis of each value counts the images, of one, two, and the given batch."""
    for name in one.varying:
        found, larger = one.shape(name), two.shape(name)
        if not found or larger != (2 * found[0], *found[1:]):
            return False
        if shapes.get(name) not in (None, (batch * found[0], *found[1:])):
            return False
    return True


def _keeps_images_apart(evaluator):
    """Return whether no value of one of two images depends on the other: bit for bit, since both are computed in the same way."""
    names = list(evaluator.producers)
    other = {name: np.roll(x, 1, axis=0) for name, x in evaluator.sample.items()}
    for position in (0, 1):  # of the image that stays
        mixed = {name: x.copy() for name, x in evaluator.sample.items()}
        for name, x in mixed.items():
            x[1 - position] = other[name][1 - position]
        results = evaluator.run(names, mixed)
        for name in names:
            before, after = (_of_image(array, position) for array in (evaluator.sampled[name], results[name]))
            if before.tobytes() != after.tobytes():
                return False
    return True


def _of_image(array, position):
    half = len(array) // 2
    return np.ascontiguousarray(array[position * half : (position + 1) * half])
