"""Import of ONNX models: from a file to a packed network, with a report."""

import dataclasses
import os
from typing import Optional, Sequence, Union

import numpy as np

from ...arguments import require_names_in_lists
from ...errors import UserError, counted, name_some
from ...files.exported import Exported
from ...graph.nodes import InputShape
from ...reporting import ProgressLine
from ...vision.classifier import number_of_classes, require_names
from ...vision.preprocessing import InputSpec
from ..convert.calibration import LayerOptions
from ..convert.calibration_images import with_images
from ..convert.packing import pack
from ..convert.partition import NOT_CONNECTED
from ..convert.report import Report
from ..program.operation_table import MAX_LEVEL_BITS
from . import layers, normalization, sequence_layers  # noqa: F401  register their translations
from .exact_sums import exact_steps
from .factors import with_factors_after_layers
from .layout import with_channels_second
from .merging import with_merged_channels
from .moves import MOVING
from .reading_back import read_back
from .sequences import with_sequences_as_maps
from .stored_programs import stored_program
from .ties import TiesError, share_of_ties, with_comparisons
from .translation import Translator
from .trial import tried

Path = Union[str, os.PathLike]
_FREQUENT = 1e-3  # share of signs of 0 from which the report warns of them


@dataclasses.dataclass
class ImportReport:
    """Result of an import; ``str`` of it is a summary.

    Attributes
    ----------
    layers : list of ImportedLayer
        Convolutions and dense layers, in the order of the model, with the bits of a weight and the reason why one stays real-valued.
    outputs : list of str
        Names of the values of the model that the packed network outputs.
    notes : list of str
        What differs from the model: outputs left out, zeros taken as positive.
    conversion : Report
        Of the conversion to a packed program; with the sizes of the ONNX model and of the packed file.
    """

    layers: list
    outputs: list
    notes: list
    conversion: Report

    @property
    def binary_layers(self):
        """Number of layers that are computed by bit operations."""
        return sum(not layer.reason for layer in self.layers)

    def to_json(self):
        """Return the report as a dict that `json` can serialize."""
        return {**dataclasses.asdict(self), 'binary_layers': self.binary_layers}

    def __str__(self):
        weights = sum(layer.weights for layer in self.layers)
        bits = sum(layer.bits * layer.weights for layer in self.layers) / weights
        among = '1 convolution or dense layer' if len(self.layers) == 1 else f'{len(self.layers)} convolutions and dense layers'
        lines = [f'{counted(self.binary_layers, "binary layer")} of {among}; {bits:.2f} bits a weight']
        real = (layer for layer in self.layers if layer.reason and layer.bits > MAX_LEVEL_BITS)
        lines += [f'stays real-valued: {layer.name}: {layer.reason}' for layer in real]
        return '\n'.join([*lines, *self.notes, *str(self.conversion).split('\n')[1:]])


def import_onnx(
    model_file: Path,
    prefix: Path,
    input_shape: Optional[InputShape] = None,
    zero_is_positive: bool = False,
    verify: bool = True,
    half: bool = False,
    input_spec: Optional[InputSpec] = None,
    class_names: Optional[Sequence[str]] = None,
    calibration: 'Union[np.ndarray, Path, None]' = None,
    ranges: str = LayerOptions.ranges,
    keep_float: Sequence[str] = (),
    min_correlation: float = LayerOptions.min_correlation,
    outputs: Optional[Sequence[str]] = None,
) -> ImportReport:
    """Convert a trained network of few bits in an ONNX file to a packed one and write PREFIX-symbol.json and PREFIX-0000.params.

    The network may come from any library. Which layers are binary is found by evaluation with ONNX Runtime: activations that take few
    levels, whatever computes them, and weights of few levels. MXNet is not needed.

    Parameters
    ----------
    model_file : path
        ONNX model with operators of version 9 to 23, or of QONNX. External data are read from its folder.
    prefix : path
        Prefix of the files to write.
    input_shape : tuple of int, or dict of str to tuple of int, or None
        Shape of the input, batch included. Default: the shape in the model, with batch 1 if its batch is open, or more than two images
        that do not depend on each other.
    zero_is_positive : bool
        A sign that is 0 for an argument of 0, as PyTorch's, has three levels. True: it becomes 1 there. False: it is refused.
    verify : bool
        Compare each node with ONNX Runtime on a random sample: within 1e-5 of its largest value, bits exactly.
    half : bool
        Store the weights of float convolutions and dense layers in half precision.
    input_spec : InputSpec or None
        Preprocessing of images, for `Session.classify`.
    class_names : sequence of str or None
        Names of the classes.
    calibration, ranges, keep_float, min_correlation
        Images on which real-valued layers become layers of 8-bit integers, as in `bmx_melius.convert`.
    outputs : sequence of str or None
        Names of values or operators of the model at which the packed network ends, for models whose last part has no packed form. The
        report lists the operators that are left out. Default: the outputs of the model.

    Returns
    -------
    ImportReport

    Raises
    ------
    UserError
        If the file is not a valid model, takes too much memory or time, has no weights of few levels, or a node cannot be converted; the
        message names it. No file is written.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx
    >>> import bmx_melius as bmx
    >>> arrays = {'w': np.ones((8, 4, 1, 1), 'float32'), 'v': np.where(np.eye(8) > 0, 1, -1).astype('float32')[:, :, None, None]}
    >>> graph = onnx.parser.parse_graph('net (float[1,4,6,6] x) => (float[1,8,6,6] y) {a = Conv(x, w)  s = Sign(a)  y = Conv(s, v)}')
    >>> graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    >>> onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 17)], ir_version=8), 'net.onnx')
    >>> report = bmx.import_onnx('net.onnx', 'packed', zero_is_positive=True)
    >>> report.binary_layers, bmx.Session('packed')(np.ones((2, 4, 6, 6), 'float32')).shape
    (1, (2, 8, 6, 6))
    """
    require_names_in_lists(class_names=class_names, keep_float=keep_float, outputs=outputs)
    exported = Exported(prefix)
    exported.require_writable()
    real_layers = with_images(LayerOptions(half, calibration, ranges, keep_float, min_correlation), input_spec)
    with ProgressLine(total=1, description='computing the model', unit='times') as line:
        model, evaluator = tried(model_file, input_shape, outputs)
        line.update()
    if evaluator is None:
        return _read_back(model, exported, half or calibration is not None, input_spec, class_names)
    evaluator = evaluator.without_empty_values()
    for name in model.outputs:
        if name not in evaluator.varying:
            raise UserError(f'{model.path}: the output {name} does not depend on the input')
    _require_inference(model, evaluator)
    _require_no_state(evaluator)
    evaluator.require_numbers()
    evaluator, moved = _with_channels_second(evaluator)
    translator = Translator(evaluator)
    packed_outputs = translator.translate(model.outputs)
    with_ties = list(translator.signs_with_ties)
    if with_ties:
        _require_permission(model, translator, zero_is_positive)
        most_tied, share = share_of_ties(evaluator, translator.signs_with_ties)
        steps = {name: dataclasses.replace(step, tie_channels=0, upper=None) for name, step in translator.signs_with_ties.items()}
        evaluator = with_comparisons(evaluator, steps)
        translator = Translator(evaluator, steps)
        packed_outputs = translator.translate(model.outputs)
    exact, shares = exact_steps(evaluator, translator.steps)
    if exact:
        evaluator = with_comparisons(evaluator, exact)
        translator = Translator(evaluator, {**translator.steps, **exact})
        packed_outputs = translator.translate(model.outputs)
    if model.precision:
        translator.notes.append(f'the model computes in {model.precision}, the packed network in float32, with which it is compared')
    translator.notes += [
        f'the input {name} takes 8-bit integers in the model, the same numbers in float32 in the packed network'
        for name in model.integer_inputs
    ]
    translator.notes += [f'the input {name} takes ids, integers from 0 to {rows - 1}' for name, rows in model.ids.items()]
    translator.notes += [f'the input {name} has the channels second in the packed network: {evaluator.shape(name)}' for name in moved]
    translator.notes += [f'the input {name} is left out: nothing reads it' for name in translator.unused_inputs()]
    if model.left_out:
        translator.notes.append(f'left out after {name_some(model.outputs)}: {", ".join(model.left_out)}')
    if not any(not layer.reason or layer.bits <= MAX_LEVEL_BITS for layer in translator.layers):
        lost = ''.join(f'. {hint}' for hint in _lost_signs(translator.layers))
        raise UserError(f'{model.path}: this network has no binary layer, and no weights of few levels: {_why_not(translator)}{lost}')
    translator.notes += _lost_signs(translator.layers)
    packed = pack(translator.network, verify, real_layers, input_spec)
    report = packed.report
    if report.left or report.packed_operators != 1:
        first_causes = sorted(report.left, key=lambda each: each.reason == NOT_CONNECTED)  # what is not connected is so because of others
        left = [f'node {each.node} ({each.operator}): {each.reason}' for each in first_causes]
        raise UserError(f'{model.path} cannot be packed as a whole: {left[0] if left else "it has parts that do not depend on each other"}')
    if with_ties:
        translator.notes.append(f'taken as the higher level where it is between both, as the sign of 0 is: {name_some(with_ties)}')
        if share >= _FREQUENT:
            translator.notes.append(
                f'{share:.1%} of the signs {most_tied} are between both in a random sample: the outputs differ from the model'
            )
    translator.notes += [
        f'{share:.1%} of the elements of {name} are decided by the rounding of ONNX Runtime in a random sample: they compare sums of '
        'integers times a number that are equal to the threshold; the packed network compares the exact sum'
        for name, share in shares.items()
        if share >= _FREQUENT
    ]
    shapes = [(1, *evaluator.shape(name)[1:]) for name in packed_outputs]
    fields = _description(input_spec, class_names, shapes, packed_outputs, model.path)
    found = ImportReport(_as_stored(translator.layers, report), packed_outputs, translator.notes, report)
    return _written(exported, packed.symbol, packed.arrays, fields, found, model)


def _with_channels_second(evaluator):
    """Return an `Evaluator` of the model with the channels of maps and sequences second, and the inputs whose shape that changes."""
    sequences = with_sequences_as_maps(evaluator)
    if sequences is not evaluator:
        return with_factors_after_layers(sequences), []
    return with_channels_second(with_merged_channels(with_factors_after_layers(evaluator)))


def _read_back(model, exported, changes_layers, input_spec, class_names):
    """Write the program that `export-onnx` stored in a model."""
    if changes_layers:
        raise UserError(
            f'{model.path} contains its program, whose layers are not converted: import it without half (--half) and calibration (--int8)'
        )
    program, order = stored_program(model.proto, model.path)
    symbol, arrays, found, report = read_back(model, program, order)
    values = program.values()
    shapes = [(1, values[program.outputs[number]].channels) for number in order]
    fields = _description(input_spec, class_names, shapes, model.outputs, model.path)
    note = 'the program is the source of the model, compared with it operation by operation'
    return _written(exported, symbol, arrays, fields, ImportReport(found, model.outputs, [note], report), model)


def _description(input_spec, class_names, shapes, outputs, path):
    """Return the description of the network; `shapes` are the shapes of its outputs."""
    fields = {}
    if input_spec is not None:
        fields['input'] = input_spec.to_json()
    if class_names is not None:
        require_names(class_names, number_of_classes(shapes, path), 'class_names')
        fields['class_names'] = list(class_names)
    if len(outputs) > 1:
        fields['output_names'] = outputs
    return fields


def _written(exported, symbol, arrays, fields, report, model):
    """Write the files of an import; return its report."""
    exported.write_symbol(symbol, arrays, fields)
    conversion = report.conversion
    conversion.symbol_file, conversion.params_file = exported.symbol_file, exported.parameter_file(0)
    conversion.size_before, conversion.size_after = model.size, os.path.getsize(conversion.params_file)
    return report


def _as_stored(found, report):
    """Return layers with the bits of a weight in the file: weights of real-valued layers may have half precision or few levels."""
    integers = set(report.quantization.changes) - set(report.quantization.keep_float) if report.quantization else ()
    sums = {name: weight for name, (weight, _) in report.integer_bits.items()}
    bits = {**dict.fromkeys(integers, 8), **report.level_bits, **sums}
    real = 16 if report.half else 32
    return [dataclasses.replace(layer, bits=bits.get(layer.name, real)) if layer.reason else layer for layer in found]


def _require_inference(model, evaluator):
    """Raise `UserError` for normalizations and dropout in training mode: each run of such a model has another result."""
    for operator in model.operators:
        if operator.kind == 'BatchNormalization':
            trains, hint = operator.attributes.get('training_mode', 0), ''
        elif operator.kind == 'Dropout':
            ratio, mode = (evaluator.constant(name) if name else None for name in (*operator.inputs[1:3], '', '')[:2])
            trains = mode is not None and mode.any() and (ratio is None or ratio > 0)
            hint = ', and F.dropout with training=self.training'
        else:
            continue
        if trains:
            raise UserError(
                f'{model.path}: node {operator.name} ({operator.kind}) is in training mode: export the network in evaluation mode '
                f'(net.eval()){hint}'
            )


_RECURRENT = ('GRU', 'LSTM', 'RNN')


def _require_no_state(evaluator):
    """Raise `UserError` for layers that compute one step of a sequence after the other: a program has no state."""
    for operator in evaluator.model.operators:
        if operator.kind in _RECURRENT:
            source = operator.inputs[0]
            while source in evaluator.producers and evaluator.producers[source].kind in MOVING:
                source = evaluator.producers[source].inputs[0]
            before = f'pack what is before it with --outputs {source} (outputs=[{source!r}])' if source in evaluator.producers else ''
            raise UserError(
                f'{evaluator.model.path}: node {operator.name} ({operator.kind}) has a state from one step to the next, for which there is '
                f'no packed form: {before or "compute it outside of the network"}'
            )


def _require_permission(model, translator, zero_is_positive):
    if not zero_is_positive:
        name, step = next(iter(translator.signs_with_ties.items()))
        others = f' and {len(translator.signs_with_ties) - 1} more' if len(translator.signs_with_ties) > 1 else ''
        raise TiesError(
            f'{model.path}: the value {name}{others} is a sign that is 0 where its argument is 0 (here in {step.tie_channels} of '
            f'{step.levels.shape[1]} channels), as torch.sign is: three levels, and a bit has two. Give --zero-is-positive '
            '(zero_is_positive=True) to take 1 there'
        )


def _lost_signs(found):
    """Return what may have happened to the signs of layers that have only weights, or only inputs, of few levels."""
    hints = []
    weights, inputs = ([layer.name for layer in found if layer.few_levels == which] for which in ('weights', 'input'))
    if weights:
        hints.append(
            f'{name_some(weights)}: if the network takes the sign of what is read there through .data (x.data = x.data.sign()), which an '
            'exporter does not see, the sign was lost: return it from forward (x = x.sign()), and export again'
        )
    if inputs:
        hints.append(
            f'{name_some(inputs)}: if the network binarizes these weights through .data, the export has real weights: store binarized '
            'weights before it, or binarize in forward'
        )
    return hints


def _why_not(translator):
    return '; '.join(f'{layer.name}: {layer.reason}' for layer in translator.layers[:3]) or 'it has no convolution and no dense layer'
