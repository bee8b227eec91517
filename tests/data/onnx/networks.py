"""Small PyTorch networks that binarize in the way of different published repositories: the same expressions in the forward pass."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Sign(torch.autograd.Function):
    """Sign with the gradient passed straight through, as IR-Net, AdaBin and XNOR-Net define it."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def polynomial_sign(x):
    """Bi-Real Net's sign: the polynomial that gives the gradient cancels only up to rounding and stays in the graph."""
    hard = torch.sign(x)
    first, second, third = ((x < bound).type(torch.float32) for bound in (-1, 0, 1))
    soft = (-1) * first + (x * x + 2 * x) * (1 - first)
    soft = soft * second + (-x * x + 2 * x) * (1 - second)
    soft = soft * third + 1 * (1 - third)
    return hard.detach() - soft.detach() + soft


def random_weight(*shape):
    return nn.Parameter(torch.randn(*shape) / math.sqrt(math.prod(shape[1:])))


class Shift(nn.Module):
    """ReActNet's learnable bias."""

    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(0.2 * torch.randn(1, channels, 1, 1))

    def forward(self, x):
        return x + self.bias.expand_as(x)


class HardBinaryConv(nn.Module):
    """Convolution of Bi-Real Net and ReActNet; the first stores its weights as one column."""

    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, column=True):
        super().__init__()
        self.shape, self.stride, self.padding = (outputs, inputs, kernel, kernel), stride, padding
        weight = random_weight(*self.shape)
        self.weight = nn.Parameter(weight.data.reshape(-1, 1)) if column else weight

    def forward(self, x):
        real = self.weight.view(self.shape)
        scale = abs(real)
        for axis in (3, 2, 1):
            scale = torch.mean(scale, dim=axis, keepdim=True)
        binary = scale.detach() * torch.sign(real)
        clipped = torch.clamp(real, -1.0, 1.0)
        return F.conv2d(x, binary.detach() - clipped.detach() + clipped, stride=self.stride, padding=self.padding)


def pooled_shortcut(inputs, outputs, stride):
    return nn.Sequential(nn.AvgPool2d(2, stride), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class BiRealBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv, self.norm = HardBinaryConv(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)
        self.shortcut = pooled_shortcut(inputs, outputs, stride) if (inputs, 1) != (outputs, stride) else None

    def forward(self, x):
        out = self.norm(self.conv(polynomial_sign(x)))
        out += x if self.shortcut is None else self.shortcut(x)
        return out


class ReActBlock(nn.Module):
    """Block of ReActNet's ResNet: shifts before the sign and around PReLU."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.before = Shift(inputs)
        self.conv, self.norm = HardBinaryConv(inputs, outputs, 3, stride, 1, column=False), nn.BatchNorm2d(outputs)
        self.activation = nn.Sequential(Shift(outputs), random_prelu(outputs), Shift(outputs))
        self.shortcut = pooled_shortcut(inputs, outputs, stride) if (inputs, 1) != (outputs, stride) else None

    def forward(self, x):
        out = self.norm(self.conv(polynomial_sign(self.before(x))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.activation(out)


def random_prelu(channels):
    layer = nn.PReLU(channels)
    nn.init.uniform_(layer.weight, -0.1, 0.5)
    return layer


class ResNet(nn.Module):
    """Stem of ImageNet, four stages of `block` and a linear classifier."""

    def __init__(self, block, blocks=(1, 1, 1, 1), widths=(8, 8, 16, 16), classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.MaxPool2d(3, 2, 1))
        layers, inputs = [], widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for index in range(count):
                layers.append(block(inputs, width, 2 if stage and not index else 1))
                inputs = width
        self.layers, self.pool, self.fc = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.pool(self.layers(self.stem(x)))
        return self.fc(x.view(x.size(0), -1))


class ReActNetABlock(nn.Module):
    """Block of ReActNet-A: a 3x3 and a 1x1 convolution, the second one twice where the channels double."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.before = Shift(inputs)
        self.spatial, self.norm = HardBinaryConv(inputs, inputs, 3, stride, 1), nn.BatchNorm2d(inputs)
        self.between = nn.Sequential(Shift(inputs), random_prelu(inputs), Shift(inputs))
        self.pointwise_before = Shift(inputs)
        self.pointwise = nn.ModuleList(HardBinaryConv(inputs, inputs, 1) for _ in range(outputs // inputs))
        self.pointwise_norms = nn.ModuleList(nn.BatchNorm2d(inputs) for _ in range(outputs // inputs))
        self.after = nn.Sequential(Shift(outputs), random_prelu(outputs), Shift(outputs))
        self.pool = nn.AvgPool2d(2, 2) if stride == 2 else None

    def forward(self, x):
        out = self.norm(self.spatial(polynomial_sign(self.before(x))))
        out = self.between((x if self.pool is None else self.pool(x)) + out)
        signs = polynomial_sign(self.pointwise_before(out))
        parts = [norm(conv(signs)) for conv, norm in zip(self.pointwise, self.pointwise_norms, strict=True)]
        for part in parts:
            part += out
        return self.after(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))


class ReActNetA(nn.Module):
    def __init__(self, widths=(8, 16, 16, 32), strides=(1, 2, 1), classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 2, 1, bias=False), nn.BatchNorm2d(widths[0]))
        self.blocks = nn.Sequential(*(ReActNetABlock(*pair) for pair in zip(widths, widths[1:], strides, strict=False)))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.pool(self.blocks(self.stem(x)))
        return self.fc(x.view(x.size(0), -1))


class IRConv(nn.Conv2d):
    """Convolution of IR-Net: standardized weights with a power of two as scale, and signs of the input."""

    def forward(self, x):
        count = self.weight.size(0)
        w = self.weight - self.weight.view(count, -1).mean(-1).view(count, 1, 1, 1)
        w = w / w.view(count, -1).std(-1).view(count, 1, 1, 1)
        exponent = (torch.log(w.abs().view(count, -1).mean(-1)) / math.log(2)).round().float()
        scale = torch.pow(torch.tensor([2] * count).float(), exponent).view(count, 1, 1, 1).detach()
        return F.conv2d(Sign.apply(x), Sign.apply(w) * scale, self.bias, self.stride, self.padding, self.dilation, self.groups)


class AdaBinConv(nn.Conv2d):
    """Convolution of AdaBin: two levels other than -1 and 1 for the input and, for each filter, for the weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = nn.Parameter(torch.empty(()).uniform_(0.6, 1.4))
        self.beta = nn.Parameter(torch.empty(()).uniform_(-0.3, 0.3))

    def forward(self, x):
        x = self.alpha * (polynomial_sign((x - self.beta) / self.alpha) + self.beta)
        w = self.weight
        beta = w.mean((1, 2, 3)).view(-1, 1, 1, 1)
        alpha = torch.sqrt(((w - beta) ** 2).sum((1, 2, 3)) / w[0].numel()).view(-1, 1, 1, 1)
        w = Sign.apply((w - beta) / alpha) * alpha + beta
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Maxout(nn.Module):
    """AdaBin's nonlinearity."""

    def __init__(self, channels):
        super().__init__()
        self.negative = nn.Parameter(torch.empty(channels).uniform_(0.1, 0.4))
        self.positive = nn.Parameter(torch.empty(channels).uniform_(0.8, 1.2))

    def forward(self, x):
        return self.positive.view(1, -1, 1, 1) * F.relu(x) - self.negative.view(1, -1, 1, 1) * F.relu(-x)


class PaddedShortcut(nn.Module):
    """Shortcut of CIFAR ResNets: every second pixel, and zeros for the new channels."""

    def __init__(self, outputs):
        super().__init__()
        self.channels = outputs // 4

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels, self.channels), 'constant', 0)


class CifarBlock(nn.Module):
    def __init__(self, conv, activation, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.activation1, self.activation2 = activation(outputs), activation(outputs)
        self.shortcut = PaddedShortcut(outputs) if (inputs, 1) != (outputs, stride) else nn.Sequential()

    def forward(self, x):
        out = self.norm1(self.conv1(x))
        out += self.shortcut(x)
        x = out = self.activation1(out)
        out = self.norm2(self.conv2(out))
        out += x
        return self.activation2(out)


class CifarResNet(nn.Module):
    """ResNet-20 of IR-Net and AdaBin, by default with fewer channels and blocks: a width and a stride for each block."""

    def __init__(self, conv, activation, widths=(8, 16), strides=(1, 2), classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), activation(widths[0]))
        pairs = zip((widths[0], *widths), widths, strides, strict=False)
        self.layers = nn.Sequential(*(CifarBlock(conv, activation, inputs, outputs, stride) for inputs, outputs, stride in pairs))
        self.norm, self.fc = nn.BatchNorm1d(widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        x = F.avg_pool2d(x, int(x.size(3)))
        return self.fc(self.norm(x.view(x.size(0), -1)))


class VGGSmall(nn.Module):
    """VGG-Small: convolution, pooling, normalization, hard tanh; the next layer takes the sign."""

    def __init__(self, conv, widths=(8, 8, 16, 8), size=16, classes=10):
        super().__init__()
        layers = [nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.Hardtanh(inplace=True)]
        for index, (inputs, outputs) in enumerate(zip(widths, widths[1:], strict=False)):
            pool = [nn.MaxPool2d(2, 2)] if index % 2 == 0 else []
            layers += [conv(inputs, outputs, 3, padding=1, bias=False), *pool, nn.BatchNorm2d(outputs), nn.Hardtanh(inplace=True)]
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(widths[-1] * (size // 4) ** 2, classes)

    def forward(self, x):
        x = self.layers(x)
        return self.fc(x.view(x.size(0), -1))


class XNORWeights(nn.Module):
    """Weights of binary-networks-pytorch: centred over the input channels, scaled by their mean magnitude."""

    def forward(self, x):
        x = x.sub(x.mean(1, keepdim=True).expand_as(x))
        alpha = x.norm(1, 3, keepdim=True).sum([2, 1], keepdim=True).div_(x[0].nelement())
        return Sign.apply(x).mul_(alpha.expand_as(x))


class ScaledConv(nn.Conv2d):
    """Convolution of binary-networks-pytorch with a learned scale of the output."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.weights = XNORWeights()
        self.alpha = nn.Parameter(torch.empty(1, self.out_channels, 1, 1).uniform_(0.5, 1.5))

    def forward(self, x):
        return self._conv_forward(Sign.apply(x), self.weights(self.weight), bias=self.bias).mul_(self.alpha)


class PreBasicBlock(nn.Module):
    """Block of binary-networks-pytorch: normalization, binary convolution, PReLU, twice."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        layers = []
        for channels, step in ((inputs, stride), (outputs, 1)):
            layers += [nn.BatchNorm2d(channels), ScaledConv(channels, outputs, 3, step, 1, bias=False), random_prelu(outputs)]
        self.layers = nn.Sequential(*layers)
        self.shortcut = pooled_shortcut(inputs, outputs, stride) if (inputs, 1) != (outputs, stride) else None

    def forward(self, x):
        out = self.layers(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return out


class XNORLayer(nn.Module):
    """Layer of XNOR-Net-PyTorch: normalization, sign, layer with a bias, ReLU; also the mean of the input in its network for CIFAR."""

    def __init__(self, norm, layer, mean=False, scale=False):
        super().__init__()
        self.norm, self.layer, self.mean, self.scale = norm, layer, mean, scale
        if scale:
            kernel = layer.kernel_size[0]
            self.register_buffer('box', torch.full((1, 1, kernel, kernel), 1 / kernel**2))

    def forward(self, x):
        x = self.norm(x)
        if self.mean or self.scale:
            mean = torch.mean(x.abs(), 1, keepdim=True)
        out = self.layer(Sign.apply(x))
        if self.scale:  # the K of the paper, which the repository computes and then leaves out
            out = out * F.conv2d(mean, self.box, stride=self.layer.stride, padding=self.layer.padding)
        return F.relu(out)


def binarize_stored_weights(model):
    """Replace the weights of XNOR layers by their values after XNOR-Net's separate step of binarization."""
    for module in model.modules():
        if isinstance(module, XNORLayer):
            weight = module.layer.weight.data
            weight -= weight.mean(1, keepdim=True)
            axes = tuple(range(1, weight.ndim))
            module.layer.weight.data = weight.sign() * weight.clamp(-1, 1).abs().mean(axes, keepdim=True)


class XNORAlexNet(nn.Module):
    def __init__(self, scale=False, classes=10):
        super().__init__()

        def conv(inputs, outputs, kernel, padding):
            return XNORLayer(nn.BatchNorm2d(inputs, eps=1e-4), nn.Conv2d(inputs, outputs, kernel, 1, padding), scale=scale)

        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2), nn.BatchNorm2d(8, eps=1e-4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            conv(8, 16, 5, 2), nn.MaxPool2d(3, 2), conv(16, 16, 3, 1), conv(16, 8, 3, 1),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            XNORLayer(nn.BatchNorm1d(8 * 4, eps=1e-4), nn.Linear(8 * 4, 32)),
            XNORLayer(nn.BatchNorm1d(32, eps=1e-4), nn.Linear(32, 32)),
            nn.BatchNorm1d(32, eps=1e-3), nn.Dropout(), nn.Linear(32, classes),
        )  # fmt: skip
        binarize_stored_weights(self)

    def forward(self, x):
        x = self.features(x)
        return self.classifier(x.view(x.size(0), 8 * 4))


class XNORNetworkInNetwork(nn.Sequential):
    def __init__(self, classes=10):
        def conv(inputs, outputs, kernel, padding=0):
            layer = nn.Conv2d(inputs, outputs, kernel, 1, padding)
            return XNORLayer(nn.BatchNorm2d(inputs, eps=1e-4), layer, mean=True)

        super().__init__(
            nn.Conv2d(3, 16, 5, 1, 2), nn.BatchNorm2d(16, eps=1e-4, affine=False), nn.ReLU(inplace=True),
            conv(16, 16, 1), conv(16, 8, 1), nn.MaxPool2d(3, 2, 1),
            conv(8, 16, 5, 2), conv(16, 16, 1), nn.AvgPool2d(3, 2, 1),
            conv(16, 16, 3, 1), nn.BatchNorm2d(16, eps=1e-4, affine=False),
            nn.Conv2d(16, classes, 1), nn.ReLU(inplace=True), nn.AvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        binarize_stored_weights(self)


class StoredSignConv(nn.Conv2d):
    """Convolution of BinaryNet: signs of the input and weights whose stored values are -1 and 1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight.data.sign_()

    def forward(self, x):
        return super().forward(torch.sign(x))


class NormalizedConv(nn.Conv2d):
    """RBNN's convolution: signs of inputs and weights from which their mean is subtracted and which are divided by their deviation."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = nn.Parameter(self.weight.detach().abs().mean((1, 2, 3)).reshape(-1, 1, 1))

    def forward(self, x):
        centred, weight = x - x.mean([1, 2, 3], keepdim=True), self.weight - self.weight.mean([1, 2, 3], keepdim=True)
        signs, weights = (Sign.apply(values / values.std([1, 2, 3], keepdim=True)) for values in (centred, weight))
        return F.conv2d(signs, weights, None, self.stride, self.padding, self.dilation, self.groups) * self.alpha


class Thermometer(nn.Module):
    """FracBNN's code of an image: whether each channel is larger than each of several thresholds."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.register_buffer('levels', torch.arange(float(steps)).reshape(1, 1, -1, 1, 1))

    def forward(self, x):
        n, c, h, w = x.shape
        scaled = (x * 2 + 4).view(n, c, 1, h, w)
        code = (self.levels < torch.round(scaled)).float()
        return (code * 2 - 1).view(n, c * self.steps, h, w)


class GatedConv(nn.Conv2d):
    """FracBNN's convolution: with the signs of the input everywhere, with its four levels where the result exceeds a threshold."""

    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1, bias=False)
        self.threshold = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        weight = torch.sign(self.weight)
        coarse = F.conv2d(torch.sign(x), weight, padding=1) * 2.0 / 3.0
        gate = torch.gt(torch.sigmoid(5.0 * (coarse - self.threshold)), 0.5).float()
        return (1 - gate) * coarse + gate * F.conv2d(x, weight, padding=1)


class FracNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.first = Thermometer(8), random_weight(16, 24, 3, 3)
        self.layers = nn.ModuleList(nn.ModuleList([GatedConv(16), nn.BatchNorm2d(16), random_prelu(16)]) for _ in range(2))
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x):
        out = self.norm(F.conv2d(self.encode(x), torch.sign(self.first), padding=1))
        for conv, norm, activation in self.layers:
            levels = torch.round((torch.clamp(out, -1.0, 1.0) + 1.0) * 1.5) / 1.5 - 1.0
            out = activation(norm(conv(levels))) + out
        return self.head(out.mean((2, 3)))


class SqueezedBlock(nn.Module):
    """BNext's block: the result of a binary convolution, times a gate computed from it and the input, times the input."""

    def __init__(self, channels):
        super().__init__()
        self.shift, self.weight = Shift(channels), random_weight(channels, channels, 3, 3)
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.before, self.after = random_prelu(channels), random_prelu(channels)
        self.share = nn.Parameter(torch.full((1, channels, 1, 1), 0.5))
        gates = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels // 2, 1), nn.ReLU(), nn.Conv2d(channels // 2, channels, 1)]
        self.gate = nn.Sequential(*gates, nn.Sigmoid())

    def forward(self, x):
        residual = self.before(x)
        moved = self.shift(x)
        clamped = moved.clamp(-1.5, 1.5)
        out = self.after(self.norm(F.conv2d((moved.sign() - clamped).detach() + clamped, self.weight.sign(), padding=1)))
        out = self.gate(self.share * x + (1 - self.share) * out) * out
        return self.last(out * residual) + residual


class SqueezedNet(nn.Module):
    """Blocks of BNext after a stem that makes channels of blocks of pixels; two blocks that read the same double the channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 16, 1, bias=False), nn.BatchNorm2d(16))
        self.first, self.left, self.right = (SqueezedBlock(16) for _ in range(3))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        out = self.first(self.stem(x))
        return self.head(torch.cat((self.left(out), self.right(out)), dim=1).mean((2, 3)))


class PointNet(nn.Module):
    """BiPointNet's layers: dense layers of each point, (N, C, points) -> (N points, C); the mean is subtracted from the weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 32)
        self.dense = nn.ParameterList([random_weight(32, 32), random_weight(64, 32)])
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in (32, 32, 64))
        self.shift, self.last, self.head = nn.Parameter(torch.randn(64)), random_weight(32, 64), nn.Linear(32, 5)

    def forward(self, x):
        n, _, count = x.shape
        out = self.first(x.permute(0, 2, 1).contiguous().view(n * count, -1))
        out = F.hardtanh(self.norms[0](out.view(n, count, -1).permute(0, 2, 1)))
        for weight, norm in zip(self.dense, self.norms[1:]):
            rows = out.permute(0, 2, 1).contiguous().view(n * count, -1)
            rows = F.linear(torch.sign(rows), torch.sign(weight - weight.mean()))
            out = norm(rows.view(n, count, -1).permute(0, 2, 1))
        pooled = torch.sign(torch.max(out, 2)[0] - self.shift)
        return self.head(F.linear(pooled, torch.sign(self.last)))


class DoReFaConv(nn.Conv2d):
    """Convolution of DoReFa-Net in PyTorch: a scale for the layer with one bit, evenly spaced weights with more."""

    def __init__(self, *args, bits=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.bits = bits

    def forward(self, x):
        w = self.weight
        if self.bits == 1:
            mean = torch.mean(torch.abs(w)).detach()
            w = torch.sign(w / mean) * mean
        else:
            steps = float(2**self.bits - 1)
            w = torch.tanh(w)
            largest = torch.max(torch.abs(w)).detach()
            w = largest * (2 * (torch.round((w / 2 / largest + 0.5) * steps) / steps) - 1)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DoReFaActivation(nn.Module):
    def __init__(self, bits):
        super().__init__()
        self.steps = float(2**bits - 1)

    def forward(self, x):
        return torch.round(torch.clamp(x, 0, 1) * self.steps) / self.steps


class DoReFaNet(nn.Module):
    def __init__(self, weight_bits, activation_bits=2, classes=10):
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 1, 1, bias=False)]
        for inputs, outputs, stride in ((8, 16, 2), (16, 16, 1), (16, 16, 2)):
            layers += [nn.BatchNorm2d(inputs), DoReFaActivation(activation_bits)]
            layers += [DoReFaConv(inputs, outputs, 3, stride, 1, bias=False, bits=weight_bits)]
        self.layers, self.fc = nn.Sequential(*layers, nn.BatchNorm2d(16)), nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.layers(x).mean(dim=(2, 3)))


class LSQ(nn.Module):
    """Quantizer with a learned step, LSQ (arXiv:1902.08153, equations 1 and 2): the step times integers from `low` to `high`."""

    def __init__(self, step, low, high):
        super().__init__()
        self.step, self.low, self.high = nn.Parameter(torch.tensor(step)), low, high

    def forward(self, x):
        return torch.round(torch.clamp(x / self.step, self.low, self.high)) * self.step


class LSQConv(nn.Conv2d):
    def __init__(self, *args, bits, **kwargs):
        super().__init__(*args, **kwargs)
        self.input = LSQ(4 / 2**bits, 0, 2**bits - 1)
        self.quantizer = LSQ(0.2 / 2 ** (bits - 1), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def forward(self, x):
        w = self.quantizer(self.weight)
        return F.conv2d(self.input(x), w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class BWNConv(nn.Conv2d):
    """Binary weight network: signs times the mean magnitude of each filter, and real inputs."""

    def forward(self, x):
        w = simple_weight(self.weight)
        return F.conv2d(F.relu(x), w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class LevelsNet(nn.Sequential):
    """Three convolutions of the class `conv`, each after a normalization."""

    def __init__(self, conv, classes=10, **options):
        super().__init__(
            nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), conv(8, 16, 3, 2, 1, bias=False, **options),
            nn.BatchNorm2d(16), conv(16, 16, 3, 1, 1, bias=False, **options),
            nn.BatchNorm2d(16), conv(16, 16, 1, bias=False, **options),
            nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
        )  # fmt: skip


class TernaryConv(nn.Conv2d):
    """Ternary weights: of TWN (one magnitude for each filter) or TTQ (a learned level for each sign); signs of the input on request."""

    def __init__(self, *args, kind, signs=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.kind, self.signs = kind, signs
        if kind == 'ttq':
            self.positive, self.negative = nn.Parameter(torch.tensor(0.11)), nn.Parameter(torch.tensor(0.07))

    def forward(self, x):
        w = self.weight
        if self.kind == 'twn':
            mask = (w.abs() > 0.7 * w.abs().mean((1, 2, 3), keepdim=True)).float()
            alpha = (w.abs() * mask).sum((1, 2, 3), keepdim=True) / mask.sum((1, 2, 3), keepdim=True)
            w = alpha * torch.sign(w) * mask
        else:
            bound = 0.05 * w.abs().max()
            w = self.positive * (w > bound).float() + (-self.negative * (w < -bound).float())
        x = torch.sign(x) if self.signs else F.relu(x)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class TernaryNet(nn.Sequential):
    def __init__(self, classes=10, **kind):
        super().__init__(
            nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), TernaryConv(8, 16, 3, 2, 1, bias=False, **kind),
            nn.BatchNorm2d(16), TernaryConv(16, 16, 3, 1, 1, bias=False, **kind),
            nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
        )  # fmt: skip


def simple_weight(w):
    """Return signs of weights with their mean magnitude for each filter."""
    return torch.sign(w) * w.abs().mean(tuple(range(1, w.ndim)), keepdim=True)


class SignLayer(nn.Module):
    """Signs of the input and scaled signs of the weights of any PyTorch layer with `weight`."""

    def __init__(self, layer, activation=torch.sign, weight=simple_weight, pad=None):
        super().__init__()
        self.layer, self.activation, self.quantize, self.pad = layer, activation, weight, pad

    def forward(self, x):
        x = self.activation(x)
        if self.pad is not None:
            x = F.pad(x, self.pad[0], 'constant', self.pad[1])
        w, layer = self.quantize(self.layer.weight), self.layer
        if isinstance(layer, nn.Linear):
            return F.linear(x, w, layer.bias)
        function = getattr(F, 'conv' + type(layer).__name__[4:].lower())
        return function(x, w, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def tanh_sign(x):
    """A smooth function for the gradient that cancels."""
    soft = torch.tanh(3 * x)
    return soft + (torch.sign(x) - soft).detach()


FORMS = {  # expressions of two levels found in training code other than sign itself
    'where': lambda x: torch.where(x >= 0, 1.0, -1.0),
    'where on tensors': lambda x: torch.where(x > 0, torch.ones_like(x), -torch.ones_like(x)),
    'compare and scale': lambda x: (x >= 0).float() * 2 - 1,
    'straight through': lambda x: x + (torch.sign(x) - x).detach(),
    'tanh': tanh_sign,
    'clamped and rounded': lambda x: 2 * torch.round(torch.clamp((x + 1) / 2, 0, 1)) - 1,
    'sign of shifted sign': lambda x: torch.sign(torch.sign(x) + 0.1),
    'levels 0 and 1': lambda x: (x > 0).to(x.dtype),
    'hard sigmoid': lambda x: F.hardsigmoid(x) + ((x >= 0).float() - F.hardsigmoid(x)).detach(),
    'product with magnitude': lambda x: torch.sign(x.clamp(-1, 1)) * 0.5,
}


class FormsNet(nn.Module):
    """One binary layer for each of `FORMS`."""

    def __init__(self, channels=16, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in FORMS)
        self.layers = nn.ModuleList(SignLayer(nn.Conv2d(channels, channels, 1, bias=False), form) for form in FORMS.values())
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.fc(x.mean(dim=(2, 3)))


def weight_sign_to_one(w):
    """Weights without a third level: zero counts as positive."""
    return torch.where(w >= 0, 1.0, -1.0)


class GeometryNet(nn.Module):
    """Binary convolutions with groups, depth-wise, dilation, strides, one-sided padding and odd numbers of channels."""

    def __init__(self, classes=5):
        super().__init__()
        convs = [
            nn.Conv2d(12, 20, 3, (2, 1), (1, 2), bias=True), nn.Conv2d(20, 20, 3, 1, 1, groups=4, bias=False),
            nn.Conv2d(20, 20, 3, 1, 1, groups=20, bias=False), nn.Conv2d(20, 12, (1, 3), 1, (0, 2), dilation=(1, 2), bias=False),
            nn.Conv2d(12, 7, 2, 1, 0, bias=True),
        ]  # fmt: skip
        self.stem = nn.Conv2d(3, 12, 3, 1, 1)
        layers = []
        for index, conv in enumerate(convs):
            layers += [nn.BatchNorm2d(conv.in_channels), SignLayer(conv, pad=((0, 1, 0, 1), 0.0) if index == 4 else None)]
        self.layers, self.head = nn.Sequential(*layers), nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(7), nn.Flatten())
        self.fc = SignLayer(nn.Linear(7 * 18, classes))

    def forward(self, x):
        return self.fc(self.head(self.layers(self.stem(x))))


class NetOneDimension(nn.Sequential):
    """Keyword spotting: convolutions along time."""

    def __init__(self, classes=5):
        super().__init__(
            nn.Conv1d(4, 16, 5, 2, 2), nn.BatchNorm1d(16), SignLayer(nn.Conv1d(16, 32, 3, 1, 1, bias=False)),
            nn.BatchNorm1d(32), nn.MaxPool1d(2), SignLayer(nn.Conv1d(32, 32, 3, 2, 2, dilation=2, bias=False)),
            nn.BatchNorm1d(32), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, classes),
        )  # fmt: skip


class NetThreeDimensions(nn.Sequential):
    """Video: convolutions over time, height and width."""

    def __init__(self, classes=5):
        super().__init__(
            nn.Conv3d(2, 8, 3, (1, 2, 2), 1), nn.BatchNorm3d(8), SignLayer(nn.Conv3d(8, 16, 3, 1, 1, bias=False)),
            nn.BatchNorm3d(16), nn.AvgPool3d(2), SignLayer(nn.Conv3d(16, 16, (1, 3, 3), 1, (0, 1, 1), bias=False)),
            nn.BatchNorm3d(16), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, classes),
        )  # fmt: skip


class Detector(nn.Module):
    """Feature pyramid with boxes and scores as two outputs, and the features themselves as a third one."""

    def __init__(self, classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.ModuleList(BiRealBlock(inputs, 16, 2) for inputs in (8, 16))
        self.lateral = nn.Conv2d(16, 16, 1)
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, classes, 1)

    def forward(self, x):
        fine = self.down[0](self.stem(x))
        coarse = self.down[1](fine)
        merged = self.lateral(fine) + F.interpolate(coarse, scale_factor=2, mode='nearest')
        boxes = torch.cat([self.boxes(level).flatten(2) for level in (merged, coarse)], dim=2)
        scores = torch.cat([self.scores(level).flatten(2) for level in (merged, coarse)], dim=2)
        return boxes.transpose(1, 2), torch.sigmoid(scores).transpose(1, 2), merged


class Segmenter(nn.Module):
    """Binary encoder; PixelShuffle, a bilinear resize and a softmax over the classes of each pixel."""

    def __init__(self, classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish())
        self.blocks = nn.Sequential(ReActBlock(8, 16, 2), ReActBlock(16, 16, 1))
        self.expand = nn.Sequential(nn.BatchNorm2d(16), SignLayer(nn.Conv2d(16, 4 * 8, 1, bias=False)), nn.PixelShuffle(2))
        self.head = nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, classes, 1))

    def forward(self, x):
        x = self.head(self.expand(self.blocks(self.stem(x))))
        x = F.interpolate(x, scale_factor=2.0, mode='bilinear', align_corners=False)
        return torch.softmax(x, dim=1)


class ReluSignNet(nn.Module):
    """Sign after ReLU: the values are 0 and 1, not -1 and 1."""

    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.layer = nn.Sequential(SignLayer(nn.Conv2d(8, 16, 3, 1, 1, bias=False)), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(SignLayer(nn.Conv2d(16, 16, 3, 1, 1, bias=False)), nn.BatchNorm2d(16))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.second(self.layer(self.stem(x))).mean(dim=(2, 3)))


def zero_in_weights():
    """Return a network where one weight is exactly zero, so that `torch.sign` gives a third level."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), SignLayer(nn.Conv2d(8, 16, 3, 1, 1, bias=False)),
        nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    model[2].layer.weight.data[3, 2, 1, 1] = 0
    return model


def padded_with(value):
    """Return a network whose binary convolutions see `value` beyond the border, as after ``F.pad``."""
    convs = [SignLayer(nn.Conv2d(8, 8, 3, bias=False), weight=weight_sign_to_one, pad=((1, 1, 1, 1), value)) for _ in range(2)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), convs[0], nn.BatchNorm2d(8), convs[1], nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class ConstantBorderNet(nn.Module):
    """Padding before normalization and sign: beyond the border lies a constant for each channel, with either sign."""

    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3, bias=False)
        self.layer, self.fc = SignLayer(self.conv), nn.Linear(16, classes)

    def forward(self, x):
        x = self.norm(F.pad(self.stem(x), (1, 1, 1, 1), 'constant', 0.25))
        return self.fc(self.layer(x).mean(dim=(2, 3)))


def float_only():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def hardtanh(channels):
    """Return the activation of IR-Net."""
    return nn.Hardtanh()


class TokenLinear(nn.Linear):
    """A layer as in BiBERT: signs of inputs plus thresholds, and of centred weights, times the mean magnitude of a filter."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.move = nn.Parameter(0.1 * torch.randn(inputs))

    def forward(self, x):
        w = self.weight - self.weight.mean(-1, keepdim=True)
        return F.linear(Sign.apply(x + self.move), Sign.apply(w) * w.abs().mean(-1, keepdim=True).detach(), self.bias)


class TokenAttention(nn.Module):
    """Attention of several heads. With `bits` its queries, keys and values are signs and its probabilities 0 or 1, as in BiBERT."""

    def __init__(self, features, heads, bits):
        super().__init__()
        self.heads, self.bits, self.qkv, self.out = heads, bits, TokenLinear(features, 3 * features), TokenLinear(features, features)
        self.threshold = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        batch, tokens, features = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.bits:
            q, k, v = map(Sign.apply, (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(features // self.heads)
        shares = (Sign.apply(scores - self.threshold) + 1) / 2 if self.bits else scores.softmax(-1)
        return self.out((shares @ v).transpose(1, 2).reshape(batch, tokens, features))


def token_mlp(features, activation):
    return nn.Sequential(TokenLinear(features, 2 * features), activation, TokenLinear(2 * features, features))


class TransformerBlock(nn.Module):
    def __init__(self, features, heads, bits):
        super().__init__()
        self.first, self.attention = nn.LayerNorm(features), TokenAttention(features, heads, bits)
        self.second, self.mlp = nn.LayerNorm(features), token_mlp(features, nn.GELU())

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class VisionTransformer(nn.Module):
    """Patches, a class token and position embeddings; without the token the mean of all patches is classified."""

    def __init__(self, bits=False, token=True, features=32, heads=4, patch=4, patches=16, blocks=2, classes=10):
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, features, patch, patch), nn.Parameter(torch.randn(1, patches + token, features))
        self.token = nn.Parameter(torch.randn(1, 1, features)) if token else None
        self.blocks = nn.Sequential(*(TransformerBlock(features, heads, bits) for _ in range(blocks)))
        self.norm, self.output = nn.LayerNorm(features), nn.Linear(features, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = self.norm(self.blocks(x + self.positions))
        return self.output(x.mean(1) if self.token is None else x[:, 0])


class TokenNet(nn.Module):
    """A transformer of ids; all tokens are classified by a dense layer."""

    def __init__(self, ids=256, tokens=16, features=32, heads=4):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(ids, features), nn.Parameter(torch.randn(1, tokens, features))
        self.block = TransformerBlock(features, heads, bits=False)
        self.norm, self.output = nn.LayerNorm(features), nn.Linear(tokens * features, 10)

    def forward(self, ids):
        return self.output(self.norm(self.block(self.embedding(ids) + self.positions)).flatten(1))


class MixerBlock(nn.Module):
    def __init__(self, tokens, features, norm, activation):
        super().__init__()
        self.first, self.tokens = norm(features), token_mlp(tokens, activation)
        self.second, self.features = norm(features), token_mlp(features, activation)

    def forward(self, x):
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.second(x))


class Mixer(nn.Module):
    """MLP-Mixer of a sequence."""

    def __init__(self, norm=nn.LayerNorm, approximate='none', tokens=12, inputs=20, features=32):
        super().__init__()
        self.embedding, self.norm, self.output = nn.Linear(inputs, features), norm(features), nn.Linear(features, 5)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, features, norm, nn.GELU(approximate)) for _ in range(2)))

    def forward(self, x):
        return self.output(self.norm(self.blocks(self.embedding(x))).mean(1))


class KeywordSpotter(nn.Module):
    """Convolutions along time, PyTorch's attention, and a mean of the frames weighted by softmax."""

    def __init__(self, features=32):
        super().__init__()
        self.first, self.norm1 = nn.Conv1d(20, features, 3, padding=1), nn.BatchNorm1d(features)
        self.second, self.norm2 = nn.Conv1d(features, features, 3, 2, 1), nn.BatchNorm1d(features)
        self.attention, self.norm3 = nn.MultiheadAttention(features, 4, batch_first=True), nn.LayerNorm(features)
        self.share, self.output = nn.Linear(features, 1), TokenLinear(features, 12)

    def forward(self, x):
        x = self.norm1(self.first(x))
        x = self.norm2(F.conv1d(Sign.apply(x), simple_weight(self.second.weight), self.second.bias, 2, 1)).transpose(1, 2)
        x = self.norm3(x + self.attention(x, x, x, need_weights=False)[0])
        return self.output((self.share(x).softmax(1) * x).sum(1))


class FramesNet(nn.Module):
    """Binary layers of each frame, and two outputs: the frames of the sequence, and its last one."""

    def __init__(self, features=32):
        super().__init__()
        self.embedding, self.layers, self.output = nn.Linear(20, features), token_mlp(features, nn.ReLU()), nn.Linear(features, 6)

    def forward(self, x):
        x = self.embedding(x)
        x = self.output(x + self.layers(x))
        return x, x[:, -1]


class RecurrentNet(nn.Module):
    """A binary layer of the frames, and a GRU."""

    def __init__(self, features=16):
        super().__init__()
        self.embedding, self.layer = nn.Linear(20, features), TokenLinear(features, features)
        self.memory, self.output = nn.GRU(features, features, batch_first=True), nn.Linear(features, 6)

    def forward(self, x):
        return self.output(self.memory(self.layer(self.embedding(x)))[0][:, -1])
