"""Small networks with their trainers, and runs that save them in checkpoints, for tests."""

import mxnet as mx
import numpy as np
from mxnet import gluon

import bmx_melius  # noqa: F401  registers radam
from bmx_melius.training.optimization import make_schedule
from bmx_melius.training.progress import Progress
from bmx_melius.training.saving.checkpoints import Checkpoints
from support.gradients import descend

OPTIONS = {'model': 'test', 'lr': 0.01}


def make(optimizer='radam', seed=0, updates=0, **settings):
    """A small network with running statistics, and its trainer, after a number of updates."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix='net_')  # the trainer sorts parameters by name: two networks must have the same names
    with net.name_scope():
        net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(2, in_units=4))
    net.initialize(mx.init.Normal(1))
    arguments = {'learning_rate': 0.01, 'lr_scheduler': make_schedule('cosine', 0.01, 5, 4), **settings}
    trainer = gluon.Trainer(net.collect_params(), optimizer, arguments, update_on_kvstore=False)
    for number in range(updates):
        step(net, trainer, number)
    return net, trainer


def step(net, trainer, number):
    """One update with data that depends on `number`."""
    x = mx.nd.array(np.random.RandomState(number).randn(6, 3))
    descend(trainer, 6, lambda: (net(x) ** 2).sum())


def weights(net):
    return [value.data().asnumpy() for _, value in sorted(net._collect_params_with_prefix().items())]


def finish_epoch(progress, top1):
    progress.loss, progress.correct, progress.seen = 1.0, 1, 2
    progress.end_epoch(top1=top1)


class Run:
    """A run whose epochs have one update; it remembers the weights it saved after each."""

    def __init__(self, folder, epochs=0):
        self.net, self.trainer = make()
        self.checkpoints, self.progress, self.saved = Checkpoints(folder, OPTIONS), Progress(), {}
        for number in range(1, epochs + 1):
            self.train_and_save(number)

    def resume(self):
        self.progress = self.checkpoints.load(self.net, self.trainer)
        return self.progress.epoch

    def train_and_save(self, number):
        step(self.net, self.trainer, number)
        finish_epoch(self.progress, 0.1 * number)
        self.saved[self.progress.epoch] = weights(self.net)
        self.checkpoints.save(self.net, self.trainer, self.progress, {'number': np.array(number)})


def flip_bit(path, position, bit=0):
    """Change a bit of a file, as a failing disk does."""
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_at(moment, function):
    """`function`, but the process ends before (even moments) or after (odd moments) its call number moment // 2."""
    calls = iter(range(1000))

    def call(*arguments):
        number = next(calls)
        if moment == 2 * number:
            raise Killed
        result = function(*arguments)
        if moment == 2 * number + 1:
            raise Killed
        return result

    return call
