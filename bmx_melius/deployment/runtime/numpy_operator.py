"""Custom operator in Python that replaces the MXNet operator if that is not compiled.

MXNet looks up the operators of a symbol file in a registry to which only compiled code can add names; Python can only add types of the
operator ``Custom``. So `register` replaces the MXNet functions that load symbols by functions that rename packed operators to ``Custom``.
Writing ``Custom`` into the files would avoid this, but then the compiled operator could not be used, and MXNet runs a ``Custom`` operator
in a separate thread with copies to and from NumPy: a small network took 1500 us instead of 39 on an AMD EPYC, with the same engine.
"""

import atexit
import functools
import os
import sys

import mxnet as mx
import numpy as np

from ...errors import UserError
from ...files.symbol_json import SymbolJson
from ..program.operations import ProgramError
from ..program.packed_operator import NAME, read_structure
from ..program.program import Program
from ..program.reference import infer_shapes
from .engine import Runner


class _Operator(mx.operator.CustomOp):
    """Run a program; the last one is kept prepared for the next call."""

    def __init__(self):
        super().__init__()
        self._words = self._runner = None

    def forward(self, is_train, req, in_data, out_data, aux):
        *inputs, words = (array.asnumpy() for array in in_data)
        if self._words is None or not np.array_equal(words, self._words):
            self._runner = Runner(Program.from_words(words), words)
            self._words = words
        for output, kind, array in zip(out_data, req, self._runner.run(inputs)):
            self.assign(output, kind, mx.nd.array(array))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        raise UserError(f'{NAME}: a packed network is for inference and has no gradient: train the network that it was converted from')


class _Properties(mx.operator.CustomOpProp):
    """Names and shapes of the inputs and outputs.

    An error of the attributes is raised in `infer_shape`, which MXNet calls next: raised in `__init__`, it would crash MXNet.
    """

    def __init__(self, **attributes):
        super().__init__(need_top_grad=True)
        self._error, self._inputs, self._outputs = None, 1, 1
        try:
            self._program, self._length = read_structure(attributes)
            self._inputs, self._outputs = len(self._program.inputs), len(self._program.outputs)
        except ProgramError as error:
            self._error = error

    def list_arguments(self):
        return [*(f'data{number}' for number in range(self._inputs)), 'program']

    def list_outputs(self):
        return [f'output{number}' for number in range(self._outputs)]

    def infer_shape(self, in_shape):
        if self._error:
            raise self._error
        return [*in_shape[:-1], [self._length]], infer_shapes(self._program, in_shape[:-1]), []

    def infer_type(self, in_type):
        return [*[np.float32] * self._inputs, np.int32], [np.float32] * self._outputs, []

    def create_operator(self, ctx, shapes, dtypes):
        return _Operator()


def register():
    """Register the operator under the name of the compiled one, and use it in all symbols that are loaded."""
    mx.operator.register(NAME)(_Properties)
    # MXNet may wait forever for an operator in Python that is still running when it begins to shut down, which it does after this: handlers
    # run in reverse order.
    atexit.register(mx.nd.waitall)
    for module in (mx.nd, mx.sym):
        setattr(module, NAME, functools.partial(module.Custom, op_type=NAME))
    for module in (mx.sym, sys.modules['mxnet.symbol.symbol']):
        module.load_json = _renaming(module.load_json)
        module.load = _loading(module.load, module.load_json)


def _renaming(load_json):
    @functools.wraps(load_json)
    def load_renamed(json_str):
        if NAME in json_str:
            symbol = SymbolJson.parse(json_str, 'the text')
            for index, node in enumerate(symbol.nodes):
                if node['op'] == NAME:
                    read_structure(node['attrs'])  # raises a better error than MXNet does while it loads the symbol
                    symbol.replace(index, 'Custom', node['inputs'], {**node['attrs'], 'op_type': NAME})
            json_str = symbol.text()
        return load_json(json_str)

    return load_renamed


def _loading(load, load_json):
    @functools.wraps(load)
    def load_renamed(fname):
        if not os.path.isfile(fname):
            return load(fname)
        with open(fname, encoding='utf-8') as file:
            text = file.read()
        return load_json(text) if NAME in text else load(fname)

    return load_renamed
