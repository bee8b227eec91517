"""Generate reactnet_a.npz or bnext.npz: blocks and a small network of ReActNet-A or BNext, computed by the code of their authors.

Usage: ``python make_mobile.py NAME CHECKOUT``, a clone of the repository at the commit in `SOURCES`. The stored arrays were made with
PyTorch 2.13.0 (CPU). BNext imports einops, timm, torchinfo and torchvision without using them here: empty modules take their
places.
"""

import sys
import types

import torch
from recording import Recording
from torch import nn

SOURCES = {
    'reactnet_a': ('github.com/liuzechun/ReActNet', 'a6cd08d4605d94135faea6fd73354041e4130b52', 'mobilenet/2_step2'),
    'bnext': ('github.com/hpi-xnor/BNext', 'dfcf347a30e3bc08606b8cad2c8d4a329d5a5b28', 'src'),
}
NAME, CHECKOUT = sys.argv[1:]
REPOSITORY, COMMIT, FOLDER = SOURCES[NAME]
for unused in ('torchinfo', 'torchvision', 'einops', 'timm', 'timm.models', 'timm.models.layers'):
    sys.modules[unused] = types.ModuleType(unused)
    for name in ('summary', 'rearrange', 'trunc_normal_', 'DropPath'):
        setattr(sys.modules[unused], name, None)
sys.path.insert(0, f'{CHECKOUT}/{FOLDER}')
recording = Recording(NAME, REPOSITORY, CHECKOUT)
assert recording.metadata['commit'] == COMMIT

if NAME == 'reactnet_a':
    import reactnet

    recording.run('block', reactnet.BasicBlock(4, 4), (2, 4, 6, 6))
    recording.run('doubling block', reactnet.BasicBlock(4, 8, 2), (2, 4, 6, 6))
    reactnet.stage_out_channel = [32, 64, 128, 128]  # the stride of a block depends on the number 64
    net = reactnet.reactnet(5)
    net.fc = nn.Linear(128, 5)
    recording.run('network', net, (2, 3, 16, 16), whole_gradients=False)
    sys.path[0] = f'{CHECKOUT}/mobilenet/1_step1'
    del sys.modules['reactnet']
    import reactnet

    recording.run('doubling block, first step', reactnet.BasicBlock(4, 8, 2), (2, 4, 6, 6))
else:
    import bnext

    def at(module, temperature):
        for part in module.modules():
            if isinstance(part, bnext.HardBinaryConv):
                part.temperature.fill_(temperature)
        return module

    for case, temperature in (('warm', 0.25), ('cold', 1e-9)):
        recording.run(f'{case} block', at(bnext.BasicBlock(8, 8, mode='bias'), temperature), (2, 8, 6, 6))
        recording.run(f'{case} doubling block', at(bnext.BasicBlock(8, 16, 2, mode='scale'), temperature), (2, 8, 6, 6))
    bnext.stage_out_channel_tiny = [8, 16, 32, 32]
    torch.manual_seed(0)
    recording.run('network', at(bnext.BNext(5), 1e-9), (2, 3, 8, 8), whole_gradients=False)
    from birealnet import BasicBlock, BNext18, HardBinaryConv

    net, widths = BNext18(5), (8, 16, 32, 64)
    net.inplanes = widths[0]
    net.conv1, net.bn1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])
    for number, width in enumerate(widths):
        setattr(net, f'layer{number}', net._make_layer(BasicBlock, width, 1, stride=2 if number else 1))
    net.prelu, net.fc = nn.PReLU(widths[-1]), nn.Linear(widths[-1], 5)
    for part in net.modules():
        if isinstance(part, HardBinaryConv):
            part.temperature.fill_(1e-9)
    recording.run('network of 18 layers', net, (3, 3, 16, 16), whole_gradients=False)
recording.save()
