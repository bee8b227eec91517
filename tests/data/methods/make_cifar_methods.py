"""Generate ir_net.npz, recu.npz or adabin.npz: layers, blocks and small networks of a method, computed by the code of its authors.

Usage: ``python make_cifar_methods.py NAME CHECKOUT``, a clone of the repository at the commit in `SOURCES`. The stored arrays were made
with PyTorch 2.13.0 (CPU). The code moves its numbers to a GPU (``cuda``), which is a function that does nothing here, and VGG-Small and
the ResNets for ImageNet get few channels, a global pooling instead of one for images of 224 x 224, and no softmax.
"""

import importlib
import sys

import torch
from recording import Recording
from torch import nn

SOURCES = {  # repository, commit, and for CIFAR, VGG-Small and ImageNet: folder, module of networks, module of layers
    'ir_net': (
        'github.com/htqin/IR-Net',
        'f63a5901d02836e2cf4405da1c68e066353a025f',
        ('CIFAR-10/ResNet20/1w1a', 'resnet', 'modules.ir_1w1a'),
        ('CIFAR-10/VGG-Small', 'vgg', 'modules.ir_1w1a'),
        ('ImageNet/ResNet18/1w1a/models', 'resnet', 'ir_1w1a'),
    ),
    'recu': (
        'github.com/z-hXu/ReCU',
        '9a73bed7a6452736184795759770ae17ad0308ec',
        ('cifar', 'models_cifar.resnet', 'modules'),
        ('cifar', 'models_cifar.vgg', 'modules'),
        ('imagenet', 'models_imagenet.resnet', 'modules'),
    ),
    'adabin': (
        'github.com/huawei-noah/Efficient-Computing',
        '225ddd2e6ca41915434557f7f49d395e4f801e3e',
        ('BinaryNetworks/AdaBin/cifar10', 'nets.resnet20', 'utils.binarylib'),
        None,
        ('BinaryNetworks/AdaBin/imagenet', 'nets.resnet18', 'utils.binarylib'),
    ),
}
LAYERS = {'ir_net': 'IRConv2d', 'recu': 'BinarizeConv2d', 'adabin': 'AdaBin_Conv2d'}
NAME, CHECKOUT = sys.argv[1:]
REPOSITORY, COMMIT, OF_CIFAR, OF_VGG, OF_IMAGENET = SOURCES[NAME]
WIDTH = 4
sys.argv = sys.argv[:1]  # ReCU parses it
torch.Tensor.cuda = lambda self: self
recording = Recording(NAME, REPOSITORY, CHECKOUT)
assert recording.metadata['commit'] == COMMIT
plain_paths, plain_modules = list(sys.path), set(sys.modules)


def modules_of(source):
    """Import the modules of networks and of layers from a folder of the checkout."""
    for name in set(sys.modules) - plain_modules:
        if getattr(sys.modules[name], '__file__', None) and CHECKOUT in (sys.modules[name].__file__ or ''):
            del sys.modules[name]
    folder, networks, layers = source
    sys.path[:] = [f'{CHECKOUT}/{folder}', f'{CHECKOUT}/{folder}/modules', *plain_paths]
    return importlib.import_module(networks), getattr(importlib.import_module(layers), LAYERS[NAME])


def at(module, layer, number):
    """Return a module in which the number that rises in training, t or tau, has a value, and scalars have an axis."""
    for part in module.modules():
        if isinstance(part, layer):
            if NAME == 'recu':
                part.tau = torch.tensor(number)
            else:
                part.t, part.k = torch.tensor([number]), torch.tensor([max(1 / number, 1)])
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.dim() == 0:
                setattr(part, name, nn.Parameter(parameter.detach().reshape(1)))
    return module


EARLY, LATE = (0.85, 0.98) if NAME == 'recu' else (0.1, 3.0)
networks, layer = modules_of(OF_CIFAR)
for case, number in (('early layer', EARLY), ('late layer', LATE)):
    recording.run(case, at(layer(4, 6, kernel_size=3, stride=1, padding=1, bias=False), layer, number), (3, 4, 5, 5))
recording.run('cifar network', at(networks.ResNet(networks.BasicBlock_1w1a, [1, 1, 1]), layer, EARLY), (4, 3, 12, 12), False)

networks, layer = modules_of(OF_IMAGENET)
net = networks.ResNet(networks.BasicBlock, [1, 1, 1, 1], num_classes=5)
net.inplanes, widths = WIDTH, [WIDTH * factor for factor in (1, 2, 4, 8)]
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
if NAME == 'adabin':
    net.nonlinear1 = type(net.nonlinear1)(WIDTH)
for number, width in enumerate(widths, start=1):
    setattr(net, f'layer{number}', net._make_layer(networks.BasicBlock, width, 1, stride=1 if number == 1 else 2))
net.avgpool, net.bn2, net.fc = nn.AdaptiveAvgPool2d(1), nn.BatchNorm1d(widths[-1]), nn.Linear(widths[-1], 5)
net.bn3 = net.nonlinear2 = None  # which it does not call
net.logsoftmax = nn.Identity()
recording.run('network', at(net, layer, LATE), (6, 3, 32, 32), False)

if OF_VGG:
    networks, layer = modules_of(OF_VGG)
    net = networks.vgg_small_1w1a(num_classes=5)
    widths = [WIDTH * factor for factor in (1, 1, 2, 2, 4, 4)]
    net.conv0 = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
    for number, width in enumerate(widths):
        setattr(net, f'bn{number}', nn.BatchNorm2d(width))
        if number:
            setattr(net, f'conv{number}', layer(widths[number - 1], width, kernel_size=3, padding=1, bias=False))
    net.fc = nn.Linear(widths[-1] * 4, 5)
    recording.run('vgg', at(net, layer, LATE), (4, 3, 16, 16), False)
recording.save()
