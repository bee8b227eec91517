"""What ``bmx-melius import-bmxnet`` refuses: pairs that are damaged or were not converted, and wrong arguments."""

import numpy as np
import pytest
from support import bmxnet_v2_converter as bmxnet
from support.converted_pairs import LENET, LENET_SHAPE, WEIGHT, convolution, dense, edit, read, run, write_pair

from bmx_melius import UserError
from bmx_melius.files.parameters import read_parameters, write_parameters
from bmx_melius.importers.bmxnet_v2_converted import read_converted

GAMMA = 'arg:net_batchnorm0_gamma'  # of the networks of `write_pair`


def test_words_of_64_bits_are_refused(tmp_path):
    write_pair(lambda: [bmxnet.Activation(), bmxnet.Convolution(4, 3, in_channels=64)], tmp_path, bits=64, channels=64)
    with pytest.raises(UserError, match='words of 64 bits; such files of BMXNet-v2 are known to be broken'):
        read(tmp_path, (2, 64, 6, 6))
    arrays = read_parameters(str(tmp_path / 'binarized_net-0000.params'))
    halves = {name: array.view(np.float32)[..., :3] if 'qconv' in name else array for name, array in arrays.items()}
    write_parameters(tmp_path / 'binarized_net-0000.params', {name: np.ascontiguousarray(array) for name, array in halves.items()})
    with pytest.raises(UserError, match='words of 64 bits'):  # told by their number
        read(tmp_path, (2, 64, 6, 6))


def change_arrays(change):
    """Damage to the parameters: `change` takes them and gives others."""

    def damage(folder):
        arrays = read_parameters(str(folder / 'binarized_net-0000.params'))
        write_parameters(folder / 'binarized_net-0000.params', change(arrays))

    return damage


def change_weight(change):
    return change_arrays(lambda arrays: {**arrays, WEIGHT: np.ascontiguousarray(change(arrays[WEIGHT]))})


def change_node(operator, change):
    return lambda folder: edit(folder / 'binarized_net-symbol.json', operator, change)


def cut(name):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-100])

    return damage


CONV = 'BinaryInferenceConvolution'
DAMAGES = {
    'cut symbol': (cut('binarized_net-symbol.json'), 'holds no symbol of MXNet, or a damaged one'),
    'cut parameters': (cut('binarized_net-0000.params'), 'is damaged'),
    'an array too much': (change_arrays(lambda arrays: {**arrays, 'arg:more': np.ones(3, 'f4')}), 'arg:more, which is not a variable'),
    'an array missing': (
        change_arrays(lambda arrays: {name: arrays[name] for name in set(arrays) - {WEIGHT}}),
        'net_qconv0_weight are not in it',
    ),
    'no arg:': (change_arrays(lambda arrays: {name[4:]: array for name, array in arrays.items()}), 'its names do not begin with arg: or'),
    'too few words': (change_weight(lambda words: words[1:]), 'needs 45 words of 32 bits .* 36 of type float32'),
    'floats for words': (change_weight(lambda words: np.ones((5, 32, 3, 3), 'f4')), 'needs 45 words'),
    'integers for words': (change_weight(lambda words: words.view('i4')), 'needs 45 words .* of type int32'),
    'words rounded': (change_weight(lambda words: words.view('u4').reshape(-1).astype('f4')), 'rounded to the nearest float32'),
    'too few gammas': (change_arrays(lambda arrays: {**arrays, GAMMA: np.ones(4, 'f4')}), r'gamma has shape \(4,\), but \(5,\)'),
    'no filters': (change_node(CONV, lambda node: node['attrs'].update(num_filter='0')), 'net_qconv0_fwd'),
    'no kernel': (change_node(CONV, lambda node: node['attrs'].pop('kernel')), 'has no kernel'),
    'strides of zero': (change_node(CONV, lambda node: node['attrs'].update(stride='(0, 0)')), 'net_qconv0_fwd'),
    'a bias': (change_node(CONV, lambda node: node['attrs'].update(no_bias='False')), 'has a bias'),
    'groups': (change_node(CONV, lambda node: node['attrs'].update(num_group='2')), 'has groups'),
    'one axis': (change_node(CONV, lambda node: node['attrs'].update(kernel='(3,)')), 'not of two axes'),
    'an operator of the fork': (change_node('BatchNorm', lambda node: node.update(op='det_sign')), 'MXNet knows no operator det_sign'),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_damaged_pair_is_refused_and_nothing_is_written(name, tmp_path, capsys):
    damage, message = DAMAGES[name]
    write_pair(convolution, tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        read(tmp_path)
    assert run(tmp_path / 'binarized_net-symbol.json', tmp_path / 'out', '--input-shape', '2,32,6,6') == 2
    assert capsys.readouterr().err.count('\n') <= 3 and not list(tmp_path.glob('out*'))


def test_padding_that_is_no_number_is_refused(tmp_path):
    write_pair(lambda: convolution(padding=1), tmp_path)
    edit(tmp_path / 'binarized_net-symbol.json', 'Pad', lambda node: node['attrs'].update(constant_value='x'))
    with pytest.raises(UserError, match='holds a symbol that MXNet cannot load'):
        read(tmp_path)


def test_network_that_was_not_converted_is_refused(tmp_path):
    write_pair(convolution, tmp_path)
    with pytest.raises(UserError, match='holds no BinaryInferenceConvolution or BinaryInferenceFullyConnected'):
        read_converted(tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params', (2, 32, 6, 6))


def test_input_that_does_not_fit_is_refused(tmp_path):
    write_pair(dense, tmp_path)
    with pytest.raises(UserError, match='the weight .*qdense0_weight .* needs 56 words'):
        read(tmp_path, (1, 32, 4, 2))


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([LENET], 'PREFIX'),
        ([LENET, 'out'], '--input-shape'),
        ([LENET, 'no/folder/out', '--input-shape', LENET_SHAPE], 'there is no folder no/folder'),
        ([LENET, '/proc/out', '--input-shape', LENET_SHAPE], 'no files can be written to /proc'),
        ([LENET, '/tmp/', '--input-shape', LENET_SHAPE], "'/tmp/' names no files: give a PREFIX such as /tmp/net"),
        ([LENET, '', '--input-shape', LENET_SHAPE], "'' names no files"),
        ([LENET, 'out', '--model', 'meliusnet22'], '--model does not go with'),
        (['a.params', 'out'], 'Give --model NAME'),
        (['a.params', 'out', '--model', 'meliusnet22', '--input-shape', '1,3,8,8'], '--input-shape does not go with'),
        (['a.params', 'out', '--model', 'meliusnet22'], 'cannot read the checkpoint'),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments, message, capsys):
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1


def test_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path, capsys):
    (tmp_path / 'out-symbol.json').mkdir()
    for command in ([], ['--to', 'packed']):
        assert run(LENET, tmp_path / 'out', '--input-shape', LENET_SHAPE, *command) == 2
        error = capsys.readouterr().err
        assert 'out-symbol.json is a folder' in error and error.count('\n') == 1
    assert [file.name for file in tmp_path.iterdir()] == ['out-symbol.json']
