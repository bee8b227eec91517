"""XNOR-Net++ against a library of its authors, which has learned scales of channels only: those of rows and columns are 1."""

import dataclasses

from support.authors_arrays import AuthorsArrays

from model_zoo.method_resnets import METHODS
from model_zoo.method_units import Place


def test_the_unit_has_the_result_and_gradients_of_the_authors_library():
    method, arrays = METHODS['resnet{}_xnorpp'], AuthorsArrays('xnor_net_plus')
    unit = method.unit(Place(6, 4, 1, 4), dataclasses.replace(method.options, input_size=20, conv_kwargs={'pad_value': 0}))
    for name in ('beta', 'gamma'):
        getattr(unit[2], name).grad_req = 'null'
    arrays.assert_equal('unit', unit)
    assert len(arrays.parameters('unit')) == 4
