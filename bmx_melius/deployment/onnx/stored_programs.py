"""Programs in the metadata of the ONNX models that are made of them, where an import could not tell the operations from the operators.

Layers of 8-bit integers are computed exactly, but in many steps of 64-bit integers, and sequences and volumes with reshaped values. An
import compares the stored program with the model, operation by operation.
"""

import base64
import binascii
import json

import numpy as np

from ...errors import UserError
from ..program.operations import ProgramError
from ..program.program import Program

_KEY = 'bmx_melius_program'


def store_program(model, program, output_order):
    """Store a program in a model that was made of it, once. `output_order` is the order in the model."""
    if any(entry.key == _KEY for entry in model.metadata_props):
        return
    words = base64.b64encode(program.to_words().astype('<i4').tobytes()).decode()
    model.metadata_props.add(key=_KEY, value=json.dumps({'words': words, 'outputs': list(output_order)}))


def stored_program(proto, path):
    """Return the program in the metadata of a model and the order of its outputs, or None.

    Raises
    ------
    UserError
        If it is damaged, or does not have the inputs and outputs of the model.
    """
    text = next((entry.value for entry in proto.metadata_props if entry.key == _KEY), None)
    if text is None:
        return None
    try:
        content = json.loads(text)
        words = np.frombuffer(base64.b64decode(content['words'], validate=True), '<i4').astype(np.int32)
        order = [int(number) for number in content['outputs']]
        program = Program.from_words(words)
    except (ProgramError, ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise UserError(f'{path} has a damaged program in its metadata ({_KEY}): export the packed network again') from error
    fits = len(program.inputs) == len(proto.graph.input) and len(order) == len(proto.graph.output)
    if not fits or not all(0 <= number < len(program.outputs) for number in order):
        raise UserError(f'{path} and the program in its metadata ({_KEY}) have other inputs or outputs: export the packed network again')
    return program, order
