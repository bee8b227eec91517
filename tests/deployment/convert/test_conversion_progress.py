"""Progress of conversions on a terminal."""

import json
import re

from support.terminals import in_terminal

CONVERT = """
import mxnet as mx
from bmx_melius.__main__ import main
import bmx_melius as bmx
net = bmx.BinaryConv2D(64, kernel_size=3, padding=1)
net.initialize()
net.hybridize()
net(mx.nd.random.normal(shape=(1, 32, 8, 8)))
net.export('net')
sys.exit(main(['convert', 'net', 'packed', '--input-shape', '1,32,8,8', *sys.argv[1:]]))
"""


def test_convert_shows_its_steps_on_a_terminal_and_json_has_only_the_result_on_standard_output(tmp_path):
    shown, done = in_terminal(CONVERT, cwd=tmp_path)
    assert done.returncode == 0 and b'1 binary layer ' in done.stdout
    assert re.search(r'converting: \d+ of \d+ operators', shown) or re.search(r'verifying: \d of \d operations', shown)
    _, done = in_terminal(CONVERT, '--json', cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)['binary_layers'] == 1
