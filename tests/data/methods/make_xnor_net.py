"""Generate xnor_net.npz: a binary layer of XNOR-Net, its update of weights, and the layers of its AlexNet, by the authors' code.

Usage: ``python make_xnor_net.py CHECKOUT``, a clone of github.com/allenai/XNOR-Net at commit
4006d594fe0349a5ed4a5ba6795641d9eecb3aac. The stored arrays were made with PyTorch 2.13.0 (CPU) and lupa 2.8.

The authors' code is in Lua, for Torch. lupa runs util.lua, BinActiveZ.lua and alexnetxnor.lua; the methods of Torch's tensors that they
call are functions of PyTorch here, and the modules of ``nn`` only note their arguments. Between two layers of the authors, PyTorch computes
normalization and convolution.
"""

import importlib.metadata
import json
import sys

import lupa.lua51 as lupa
import torch
from recording import Recording, drawn, normal
from torch import nn

CHECKOUT = sys.argv[1]
lua = lupa.LuaRuntime(unpack_returned_tuples=True)
IN_PLACE = ('add', 'mul', 'div', 'cmul', 'sign', 'clamp', 'copy')
KEEPING = ('norm', 'sum', 'mean')


def call(name, tensor, *arguments):
    """Call a method of Torch 7: arithmetic changes the tensor, reductions keep their axis, dimensions count from 1."""
    data, arguments = tensor.data, [getattr(each, 'data', None) if lupa.lua_type(each) == 'table' else each for each in arguments]
    if name in IN_PLACE:
        function = {'cmul': torch.Tensor.mul_}.get(name) or getattr(torch.Tensor, f'{name}_')
        function(data, *arguments)
        return tensor
    if name in KEEPING:
        *power, axis = arguments
        return wrap(getattr(data, name)(*power, dim=int(axis) - 1, keepdim=True))
    return wrap(getattr(data, name)(*arguments))


wrap = lua.execute(
    """
    local call, select_first, fill, sizes, repeated, expanded, resized, numel = ...
    local methods, meta = {}, {}
    function wrap(data) return setmetatable({data = data}, meta) end
    for _, name in ipairs({'add', 'mul', 'div', 'cmul', 'sign', 'clamp', 'copy', 'norm', 'sum', 'mean', 'le', 'ge'}) do
        methods[name] = function(self, ...) return call(name, self, ...) end
    end
    methods.nElement = function(self) return numel(self) end
    methods.size = function(self) return sizes(self) end
    methods.expand = function(self, size) return expanded(self, size) end
    methods.repeatTensor = function(self, ...) return repeated(self, ...) end
    methods.resizeAs = function(self, other) return resized(self, other) end
    meta.__index = function(self, key) if type(key) == 'number' then return select_first(self, key) end return methods[key] end
    meta.__newindex = function(self, mask, value) fill(self, mask, value) end
    return wrap
    """,
    call,
    lambda tensor, index: wrap(tensor.data[int(index) - 1]),
    lambda tensor, mask, value: tensor.data.masked_fill_(mask.data, value),
    lambda tensor: lua.table(*tensor.data.shape),
    lambda tensor, *times: wrap(tensor.data.repeat(*map(int, times))),
    lambda tensor, size: wrap(tensor.data.expand(*map(int, size.values())).clone()),
    lambda tensor, other: (tensor.data.resize_(other.data.shape), tensor)[1],
    lambda tensor: tensor.data.numel(),
)
lua.execute(
    """
    package.preload.ffi = function() return {} end
    package.preload.cudnn = function() return {} end
    opt, nClasses, layers = {optimType = 'sgd', nGPU = 1}, 1000, {}
    local function noted(name) return function(...) local row = {name, ...} row.add = function(self, child)
        if child[1] ~= 'Sequential' then table.insert(layers, child) end end return row end end
    nn = setmetatable({}, {__index = function(_, name) return noted(name) end})
    cudnn = nn
    torch = {class = function(name) BinActiveZ = {} return BinActiveZ end}
    """
)
for file in ('util.lua', 'newLayers/BinActiveZ.lua'):
    with open(f'{CHECKOUT}/{file}') as source:
        lua.execute(source.read())
functions = lua.globals()


class Sign(torch.autograd.Function):
    """The authors' layer BinActiveZ."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        module = lua.table(output=wrap(torch.empty(0)))
        return functions.BinActiveZ.updateOutput(module, wrap(x.clone())).data

    @staticmethod
    def backward(ctx, dy):
        module = lua.table(gradInput=wrap(torch.empty(0)))
        return functions.BinActiveZ.updateGradInput(module, wrap(ctx.saved_tensors[0].clone()), wrap(dy)).data


class Layer(nn.Module):
    """BN, the authors' sign, and a convolution, whose weight the authors binarize before it and whose gradient they change after it."""

    def __init__(self, in_channels, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels, eps=1e-4)
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(Sign.apply(self.norm(x)))


def nodes_of(layer):
    """The convolutions that the authors' functions change: all but the first and the last."""
    node = lua.table(weight=wrap(layer.conv.weight.data))
    if layer.conv.weight.grad is not None:
        node.gradWeight = wrap(layer.conv.weight.grad)
    return lua.table(lua.table(), node, lua.table())


recording = Recording('xnor_net', 'github.com/allenai/XNOR-Net', CHECKOUT, lupa=importlib.metadata.version('lupa'))
layer, shape = Layer(4, 3), (2, 4, 6, 7)
with torch.no_grad():
    for name, parameter in layer.named_parameters():
        parameter.copy_(torch.from_numpy(drawn(name, tuple(parameter.shape))))
functions.meancenterConvParms(nodes_of(layer))
functions.clampConvParms(nodes_of(layer))
latent = layer.conv.weight.detach().clone()
functions.binarizeConvParms(nodes_of(layer))
x = torch.from_numpy(normal('layer:x', shape)).requires_grad_()
y = layer(x)
y.backward(torch.from_numpy(normal('layer:dy', y.shape)))
layer.conv.weight.data.copy_(latent)
functions.updateBinaryGradWeight(nodes_of(layer))
gradients = {name: parameter.grad.numpy() for name, parameter in layer.named_parameters()}
recording.arrays['latent'] = latent.numpy()
recording.add('layer', x, y, gradients)

with open(f'{CHECKOUT}/models/alexnetxnor.lua') as source:
    lua.execute(source.read())
functions.createModel()
recording.metadata['alexnet'] = [[value for key, value in row.items() if key != 'add'] for row in functions.layers.values()]
print(json.dumps(recording.metadata['alexnet']))
recording.save()
