"""The engine gives the same bits with every instruction set, number of threads and batch, for every network of the zoo."""

import itertools

import mxnet as mx
import numpy as np
import pytest
from support.engines import INSTRUCTION_SETS, Engine, needs_engine
from support.networks import OF_ONE_DEPTH, cases, of_size
from support.small_networks import initialized

from bmx_melius.deployment.convert.conversion import convert
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.errors import UserError
from model_zoo import get_model

pytestmark = needs_engine

SIZE = 64
LAYERS_OF_OTHERS = (
    'resnet18_benn',
    'resnet18_lqnet_w1a2',
    'resnet18_syq_w1a2',
    'resnet18_hwgq',
    'meliusnetb',
    'meliusnetc',
    'densenet_32bit',
)


@pytest.mark.parametrize('name', cases([*OF_ONE_DEPTH, 'mobilenet0.25'], long=LAYERS_OF_OTHERS))
def test_logits_have_the_same_bits_with_all_instruction_sets_threads_and_batches(name, open_engine, export, tmp_path, long_run):
    narrow = of_size(name, SIZE) if name in OF_ONE_DEPTH else {}
    net = initialized(get_model(name, classes=10, **narrow), (1, 3, SIZE, SIZE), mx.init.Xavier())
    try:
        convert(*export(net), tmp_path / 'packed', (1, 3, SIZE, SIZE), verify=False)
    except UserError as error:
        assert 'nothing to convert' in str(error)
        pytest.skip(f'{name} stays in MXNet')
    program = read_packed(tmp_path / 'packed')[0]
    batches = (1, 3, 32) if long_run else (1, 3)
    x = np.random.randn(max(batches), 3, SIZE, SIZE).astype(np.float32)
    expected = None
    for instruction_set in set(INSTRUCTION_SETS) & set(engine.instruction_sets()[1]):
        runner = Engine.of(open_engine(instruction_set), program)
        for batch, threads in itertools.product(batches, (1, 2, 3, 8)) if long_run else ((3, 1), (1, 3)):
            (logits,) = runner.run([x[:batch]], threads)
            expected = logits if expected is None or len(logits) > len(expected) else expected
            shared = min(len(logits), len(expected))
            assert logits[:shared].tobytes() == expected[:shared].tobytes(), (instruction_set, batch, threads)
