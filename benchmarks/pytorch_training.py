"""Training steps of networks in PyTorch, for `training_step.py --compare pytorch`, which starts this in another environment."""

from peer_networks import network, serve


class Layers:
    """Layers of PyTorch. The first pass makes modules, the next ones use them in the same order. Maps are in channels_last."""

    def __init__(self, torch):
        self._torch, self.modules, self._used = torch, torch.nn.ModuleList(), 0
        self._sign, self._weight_sign = _signs(torch)

    def start(self):
        """Begin a pass."""
        self._used = 0

    def _module(self, make):
        if self._used == len(self.modules):
            self.modules.append(make().to(memory_format=self._torch.channels_last))
        self._used += 1
        return self.modules[self._used - 1]

    def convolution(self, x, channels, kernel, stride=1, groups=1):
        arguments = {'padding': kernel // 2, 'groups': groups, 'bias': False}
        return self._module(lambda: self._torch.nn.Conv2d(x.shape[1], channels, kernel, stride, **arguments))(x)

    def binary(self, x, channels, stride=1):
        functional = self._torch.nn.functional
        layer = self._module(lambda: self._torch.nn.Conv2d(x.shape[1], channels, 3, stride, bias=False))
        signs = functional.pad(self._sign(x), (1, 1, 1, 1), value=-1.0)
        return functional.conv2d(signs, self._weight_sign(layer.weight), None, stride)

    def norm(self, x):
        return self._module(lambda: self._torch.nn.BatchNorm2d(x.shape[1]))(x)

    def relu(self, x):
        return x.relu()

    def max_pool(self, x, size):
        return self._torch.nn.functional.max_pool2d(x, size, 2, (size - 1) // 2)

    def average_pool(self, x):
        return self._torch.nn.functional.avg_pool2d(x, 2, ceil_mode=True)

    def concatenate(self, *maps):
        return self._torch.cat(maps, 1)

    def add(self, first, second):
        return first + second

    def scores(self, x, classes):
        return self._module(lambda: self._torch.nn.Linear(x.shape[1], classes))(x.mean((2, 3)))


def _signs(torch):
    """Return the sign of activations, whose gradient is cancelled beyond 1.3, and the sign of weights, with straight-through gradient."""

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return torch.where(x >= 0, 1.0, -1.0)

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return gradient * (x.abs() <= 1.3)

    class WeightSign(torch.autograd.Function):
        @staticmethod
        def forward(context, weight):
            return torch.where(weight >= 0, 1.0, -1.0)

        @staticmethod
        def backward(context, gradient):
            return gradient

    return Sign.apply, WeightSign.apply


def import_library(threads):
    """Return PyTorch, with a number of threads."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return torch


def make_step(torch, name, batch_size, size, update):
    """Return a function that makes one step."""
    layers, loss = Layers(torch), torch.nn.CrossEntropyLoss()
    images = torch.randn(batch_size, 3, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch_size,))
    network(layers, images, name)  # makes the modules
    optimizer = torch.optim.Adam(layers.modules.parameters(), 0.002, fused=True)

    def step():
        layers.start()
        optimizer.zero_grad()
        value = loss(network(layers, images, name), labels)
        value.backward()
        if update:
            optimizer.step()
        return value.item()

    return step


if __name__ == '__main__':
    serve(import_library, make_step)
