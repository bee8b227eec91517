"""Import of the models that contain the program which `export-onnx` made them of: the program itself, compared with the model."""

import numpy as np

from ...errors import UserError, counted
from ...files.symbol_json import VARIABLE
from ..convert.report import Report
from ..convert.verification import Verification
from ..program.layer_weights import weight_bits
from ..program.packed_operator import add_operator, new_symbol
from .export import value_names, verify
from .model import import_onnx_package
from .model_borders import without_borders
from .translation import ImportedLayer

_REASONS = {'binary': '', 'int8': 'its weights are 8-bit integers, as in the model', 'floats': 'its weights are real'}  # by products
_READS = {'int8': 'integers', 'floats': 'real numbers'}


def read_back(model, program, order):
    """Return what an import writes and reports of a stored program: symbol, arrays, layers and `Report`.

    Parameters
    ----------
    model : Model
    program : bmx_melius.deployment.program.program.Program
    order : list of int
        The number of the program output for each output of the model.

    Raises
    ------
    UserError
        If the model computes something else than the program.
    """
    onnx, _ = import_onnx_package()
    names, random = list(model.inputs), np.random.RandomState(0)
    batch = model.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 2
    sample = [random.normal(size=(batch, *value.shape)).astype(np.float32) for value in program.inputs]
    try:
        proto, borders = without_borders(onnx, model.proto, program, order)
        deviation = verify(proto, program, sample)
    except UserError as error:
        raise UserError(f'{model.path} was changed after its export: {error}') from error
    except Exception as error:  # of ONNX Runtime, for names or shapes of other values
        raise UserError(f'{model.path} was changed after its export: the values of its program are not in it') from error
    layers = []
    for operation, name in zip(program.operations, value_names(program, names)[len(names) :]):
        if operation.row.products:
            products, bits = operation.row.products, weight_bits(operation)
            if operation.row.weight_levels:
                count = operation.arrays['codes'].shape[1]
                reason = f'its weights have {counted(bits, "bit")}, but it reads {_READS[products]}'
            else:
                count, reason = operation.arrays['weight'].size, _REASONS[products]
            layers.append(ImportedLayer(name, count, bits, reason))
    binary = sum(not layer.reason for layer in layers)
    values = program.values()[len(names) :]
    verification = Verification('ONNX Runtime', binary, largest_deviation=deviation, engine='')
    verification.floats = sum(batch * value.channels * value.height * value.width for value in values)
    report = Report(1, binary, {}, [], [], [], False, verification)
    symbol, arrays = _symbol(program, names, order, *borders)
    return symbol, arrays, layers, report


def _symbol(program, names, order, of_inputs, of_outputs):
    """Return the symbol of a network that is one packed operator between the nodes of each `Border`, JSON, and its arrays."""
    symbol = new_symbol()

    def chained(reference, nodes):
        for operator, name, attributes in nodes:
            reference = [symbol.add(operator, name, [reference], attributes), 0, 0]
        return reference

    inputs = [[symbol.add(VARIABLE, name), 0, 0] for name in names]
    maps = [chained(x, of_inputs[n].before('network', n)) if n in of_inputs else x for n, x in enumerate(inputs)]
    packed, arrays = add_operator(symbol, 'network', maps, program, program.to_words())
    outputs = [[packed, number, 0] for number in order]
    symbol.heads = [chained(y, of_outputs[n].after('network', n)) if n in of_outputs else y for n, y in enumerate(outputs)]
    return symbol.text(indent=2), arrays
