"""Drawings: what is shown, and what happens where graphviz is missing."""

import re
import shutil

import pytest
from mxnet.gluon import nn

import model_zoo
from bmx_melius import BinaryConv2D, ChannelShuffle, QActivation, QConv2D, UserError
from bmx_melius.analysis.drawing import draw, save
from bmx_melius.graph.tracing import read_graph


def boxes_and_arrows(net, input_shape):
    source = draw(read_graph(net, input_shape)).source
    boxes = dict(re.findall(r'^\t(\w+) \[label="(.*?)"', source, re.MULTILINE | re.DOTALL))
    arrows = [
        (boxes[a], boxes[b], label.replace('\\l', '').split())
        for a, b, label in re.findall(r'^\t(\w+) -> (\w+) \[label="(.*?)"', source, re.M)
    ]
    return [text.split('\n') for text in boxes.values()], [(a.split('\n')[0], b.split('\n')[0], words) for a, b, words in arrows]


def test_layers_are_boxes_and_quantizers_are_words_on_arrows():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, 2, 1), nn.BatchNorm(), nn.Activation('relu'), BinaryConv2D(16, 3, padding=1, groups=2))
    net.add(QActivation(2, 'round'), nn.MaxPool2D(2), QConv2D(4, 1, bits=2, quantization='round'), ChannelShuffle(2), nn.Dense(10))
    boxes, arrows = boxes_and_arrows(net, (1, 3, 32, 32))
    assert boxes == [
        ['data', '3 × 32 × 32'],
        ['convolution 3 × 3 / 2', '8 × 16 × 16', '55.3 k OPs'],
        ['binary convolution 3 × 3, 2 groups', '16 × 16 × 16', '2.3 k OPs'],
        ['max pool 2 × 2 / 2', '16 × 8 × 8'],
        ['2-bit convolution 1 × 1', '4 × 8 × 8', '256 OPs'],
        ['dense', '10'],
        ['output', '10'],
    ]
    assert [words for _, _, words in arrows] == [[], ['BN', 'relu', 'sign'], ['round'], [], ['swap', 'axes'], []]


def test_a_meliusnet_has_one_box_for_each_layer_pooling_and_join():
    net = model_zoo.get_model('meliusnet22')
    boxes, arrows = boxes_and_arrows(net, (1, 3, 224, 224))
    names = [box[0] for box in boxes]
    blocks = 4 + 5 + 4 + 4
    assert sum(name.startswith('binary convolution') for name in names) == 2 * blocks
    assert sum(name.startswith('convolution') for name in names) == 3 + 3
    assert (names.count('+'), names.count('concat')) == (blocks, 2 * blocks)
    assert sum('pool' in name for name in names) == 1 + 3 + 1
    assert len(names) == 2 * blocks + 6 + 3 * blocks + 5 + len(['data', 'dense', 'output'])
    assert all(words == ['BN', 'sign'] for _, name, words in arrows if name.startswith('binary'))


@pytest.mark.skipif(not shutil.which('dot'), reason='needs the program dot of graphviz')
@pytest.mark.parametrize('suffix, start', [('.pdf', b'%PDF'), ('.png', b'\x89PNG'), ('.svg', b'<?xml')])
def test_pictures_are_written_in_the_format_of_their_name(tmp_path, suffix, start):
    save(draw(read_graph(nn.Dense(3), (1, 4))), str(tmp_path / f'net{suffix}'))
    assert (tmp_path / f'net{suffix}').read_bytes().startswith(start)


def test_without_graphviz_the_source_is_written_and_a_picture_is_an_error_with_installation_instructions(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    drawing = draw(read_graph(nn.Dense(3), (1, 4)))
    save(drawing, str(tmp_path / 'net.gv'))
    assert (tmp_path / 'net.gv').read_text().startswith('digraph')
    with pytest.raises(UserError, match='apt-get install graphviz.*gv'):
        save(drawing, str(tmp_path / 'net.pdf'))
    with pytest.raises(UserError, match='net.jpeg.*pdf'):
        save(drawing, str(tmp_path / 'net.jpeg'))
    assert [file.name for file in tmp_path.iterdir()] == ['net.gv']
