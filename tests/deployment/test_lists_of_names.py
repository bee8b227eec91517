"""Arguments that are lists of names: one name in place of a list would be taken as the list of its letters."""

import numpy as np
import pytest

import bmx_melius as bmx
from bmx_melius import UserError

CALLS = {
    'convert': lambda prefix, **names: bmx.convert('net-symbol.json', 'net-0000.params', prefix, (1, 3, 8, 8), **names),
    'import_onnx': lambda prefix, **names: bmx.import_onnx('net.onnx', prefix, **names),
    'import_torch': lambda prefix, **names: bmx.import_torch(None, (1, 3, 8, 8), prefix, **names),
}
ARGUMENTS = [
    (call, argument)
    for call in CALLS
    for argument in ('class_names', 'keep_float', 'outputs')
    if (call, argument) != ('convert', 'outputs')
]


@pytest.mark.parametrize(('call', 'argument'), ARGUMENTS)
def test_a_text_in_place_of_a_list_of_names_is_refused_before_files_are_read(call, argument, tmp_path):
    with pytest.raises(UserError, match=rf"^{argument} is a list of names, not a text: give \['abc'\]$"):
        CALLS[call](tmp_path / 'packed', **{argument: 'abc'})


@pytest.mark.parametrize('names', [3, [1, 2], [b'cat'], iter(['cat'])])
def test_what_is_not_a_list_of_texts_is_refused(names, tmp_path):
    with pytest.raises(UserError, match='^outputs must be a list of names, not '):
        CALLS['import_onnx'](tmp_path / 'packed', outputs=names)


@pytest.mark.parametrize('names', [None, ['a'], ('a', 'b'), {'a': 1}.keys(), np.array(['a'])])
def test_collections_of_texts_are_accepted(names, tmp_path):
    with pytest.raises(UserError, match='net.onnx'):  # which does not exist
        CALLS['import_onnx'](tmp_path / 'packed', class_names=names)
