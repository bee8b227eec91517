"""Import of modules of PyTorch: export to ONNX, import of the model, comparison with the module."""

import dataclasses
import os
import shutil
import tempfile
from typing import Any, Optional, Sequence, Union

import numpy as np

from ...arguments import require_names_in_lists
from ...errors import UserError
from ...files.exported import Exported
from ...files.io import replacing, require_writable
from ...vision.preprocessing import InputSpec
from ..convert.calibration import LayerOptions
from ..onnx.conversion import ImportReport, Path, import_onnx
from ..onnx.model import import_onnx_package
from ..onnx.ties import TiesError
from ..runtime.session import Session
from .comparison import Comparison, compare
from .exporting import available_exporters, export
from .fake_quantization import in_plain_operators, without_observers
from .modules import example_inputs, for_inference, inference


@dataclasses.dataclass
class TorchReport(ImportReport):
    """Result of an import from PyTorch; ``str`` of it is a summary.

    Attributes
    ----------
    layers, outputs, notes, conversion
        Of the import of the ONNX model, as in `ImportReport`.
    comparison : Comparison or None
        With the module; None if the import was not verified.
    """

    comparison: Optional[Comparison] = None

    def __str__(self):
        return '\n'.join([super().__str__(), *([str(self.comparison)] if self.comparison else [])])


def import_torch(
    module: Any,
    example: Any,
    prefix: Path,
    zero_is_positive: bool = False,
    verify: bool = True,
    exporter: Optional[str] = None,
    model_file: Optional[Path] = None,
    half: bool = False,
    input_spec: Optional[InputSpec] = None,
    class_names: Optional[Sequence[str]] = None,
    calibration: 'Union[np.ndarray, Path, None]' = None,
    ranges: str = LayerOptions.ranges,
    keep_float: Sequence[str] = (),
    min_correlation: float = LayerOptions.min_correlation,
    outputs: Optional[Sequence[str]] = None,
) -> TorchReport:
    """Convert a trained binary network of PyTorch to a packed one and write PREFIX-symbol.json and PREFIX-0000.params.

    The module is exported to ONNX, imported by `import_onnx`, which finds what is binary, and compared with the module. All of this
    happens to a copy on the CPU, in float32 and evaluation mode; the module stays as it is. Needs the packages torch, onnx, onnxruntime and
    onnxscript, ``pip install 'bmx-melius[torch]'``, and not MXNet.

    Parameters
    ----------
    module : torch.nn.Module
        With its trained weights. May be in `nn.DataParallel`, `DistributedDataParallel` or `torch.compile`. If it returns a tuple, list or
        dict of tensors, the packed network returns all of them in this order.
    example : torch.Tensor, numpy.ndarray, tuple of int, or list, tuple or dict of them
        An input, or its shape with the batch; of several inputs a list, or a dict by the names of parameters of ``forward``. The packed
        network takes any batch.
    prefix : path
        Prefix of the files to write.
    zero_is_positive : bool
        `torch.sign` is 0 for 0, a third level. True: it becomes 1 there. False: such signs are refused.
    verify : bool
        Compare each node with ONNX Runtime, and the outputs with those of the module on random inputs (and the example, unless it is
        constant): within 1e-4 of the largest one. Inputs on which rounding errors change outputs of the module itself do not count.
    exporter : str or None
        ``'torchscript'`` or ``'dynamo'``. Default: the first one, and the second one where the first fails.
    model_file : path or None
        Where to keep the ONNX model.
    half, input_spec, class_names, calibration, ranges, keep_float, min_correlation, outputs
        As in `import_onnx`. With `half` or `calibration`, the network with float32 layers is compared with the module. What the module
        computes after `outputs` is computed by ONNX Runtime for this comparison.

    Returns
    -------
    TorchReport

    Raises
    ------
    UserError
        If PyTorch is not installed, no exporter can export the module, `import_onnx` refuses the model, or the results differ from the
        module's. No file is written.

    Examples
    --------
    ::

        net = BiRealNet18()
        net.load_state_dict(torch.load('bireal18.pth', weights_only=True))
        print(bmx.import_torch(net, (1, 3, 224, 224), 'packed', zero_is_positive=True))
        logits = bmx.Session('packed')(images)
    """
    require_names_in_lists(class_names=class_names, keep_float=keep_float, outputs=outputs)
    exported = Exported(prefix)
    exported.require_writable()
    if model_file is not None:
        require_writable(model_file)
    frozen = without_observers(for_inference(module))
    inputs = example_inputs(frozen, example)
    import_onnx_package()
    candidates, plain = available_exporters(exporter), in_plain_operators(frozen)
    described = {'input_spec': input_spec, 'class_names': class_names, 'outputs': outputs}
    layers = LayerOptions(half, calibration, ranges, keep_float, min_correlation)
    refusals = []
    with inference(), tempfile.TemporaryDirectory() as folder:
        for candidate in candidates:
            source = os.path.join(folder, f'{type(frozen).__name__}.onnx')
            packed = Exported(os.path.join(folder, 'packed'))
            comparison, in_float32 = None, verify and (half or calibration is not None)  # what the module can be compared with
            try:
                export(plain, inputs, candidate, source)
                report = _imported(source, packed, zero_is_positive, verify, **described, **({} if in_float32 else vars(layers)))
                if verify:
                    comparison = compare(frozen, inputs, Session(packed), report.outputs, source, zero_is_positive)
                    comparison.exporter = candidate
                if in_float32:
                    report = _imported(source, packed, zero_is_positive, verify, **described, **vars(layers))
            except TiesError:
                raise
            except UserError as error:  # another exporter may write other operators
                refusals.append(f'{error} (exporter {candidate})')
                continue
            exported.copy(packed)
            report.conversion.symbol_file, report.conversion.params_file = exported.symbol_file, exported.parameter_file(0)
            if model_file is not None:
                with replacing(model_file) as temporary:
                    shutil.copyfile(source, temporary)
            return TorchReport(**vars(report), comparison=comparison)
    raise UserError('; '.join(refusals))


def _imported(source, packed, zero_is_positive, verify, **options):
    """Return the report of `import_onnx`; its errors have the name of the module in place of the path of a temporary file."""
    try:
        return import_onnx(source, packed, zero_is_positive=zero_is_positive, verify=verify, **options)
    except UserError as error:
        kind = TiesError if isinstance(error, TiesError) else UserError
        raise kind(str(error).replace(source, os.path.basename(source)[: -len('.onnx')])) from error
