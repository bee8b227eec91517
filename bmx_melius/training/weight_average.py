"""Exponential moving average of the parameters of a network (``--ema``)."""

import contextlib

import mxnet as mx
import numpy as np

from ..errors import UserError
from ..nn.fine_tuning import is_frozen
from ..nn.methods.schedules import scheduled_parameters

ARRAY = 'trained.'  # prefix of the names of the trained weights among the arrays of a checkpoint


class WeightAverage:
    """Exponential moving average of all parameters of a network, running statistics included.

    After update u = 1, 2, ... the average a of a parameter p becomes ``d a + (1 - d) p`` with ``d = min(decay, (1 + u) / (10 + u))``,
    so that the initial weights are soon forgotten, as in TensorFlow's ``ExponentialMovingAverage``. Of binary layers the latent weights are
    averaged, and the network with the averages has their signs: a weight whose sign changes often has the sign which the latent
    weight has on average. Numbers that follow the progress of the training (`bmx_melius.nn.methods.schedules`) are not averaged.

    Parameters
    ----------
    net : gluon.Block
        Initialized, float32, with the initial averages.
    decay : float
        0 to 1.
    """

    def __init__(self, net, decay):
        self._parameters, self._decay = net._collect_params_with_prefix(), decay
        self._averages = {name: _value(parameter) for name, parameter in self._parameters.items()}
        scheduled = scheduled_parameters(net)
        self._scheduled = {name for name, parameter in self._parameters.items() if parameter in scheduled}

    def update(self, updates):
        """Include the current parameters after the update with the number `updates`, from 1."""
        decay = np.float32(min(self._decay, (1 + updates) / (10 + updates)))
        for name, average in self._averages.items():
            value = _value(self._parameters[name])
            if name in self._scheduled:
                average[...] = value
            else:
                average += (1 - decay) * (value - average)

    @contextlib.contextmanager
    def applied(self):
        """Replace the parameters of the network by their averages for the block."""
        trained = self.trained()
        self._set(self._averages)
        try:
            yield
        finally:
            self._set(trained)

    def keep(self):
        """Replace the parameters of the network by their averages."""
        self._set(self._averages)

    def trained(self):
        """Return the current parameters of the network, a dict of str to ndarray."""
        return {name: _value(parameter) for name, parameter in self._parameters.items()}

    def resume(self, arrays):
        """Take the parameters of the network for the averages, and load the trained parameters from the `arrays` of a checkpoint.

        Raises `UserError` when these are missing.
        """
        self._averages = self.trained()
        missing = [name for name in self._averages if ARRAY + name not in arrays]
        if missing:
            raise UserError(f'the checkpoint lacks the trained weights of a run with --ema: {missing[0]}')
        self._set({name: arrays[ARRAY + name] for name in self._averages})

    def arrays(self, trained):
        """Return the arrays that a checkpoint with the averages needs besides, for `resume`; `trained` is the result of that method."""
        return {ARRAY + name: value for name, value in trained.items()}

    def _set(self, values):
        for name, value in values.items():
            self._parameters[name].set_data(mx.nd.array(value, dtype=value.dtype))  # not NumPy: inference keeps weights in another layout


def _value(parameter):
    """Return the value of a parameter, a new array; of running statistics the mean over all devices, which see different images."""
    arrays = parameter.list_data()
    statistics = parameter.grad_req == 'null' and not is_frozen(parameter)
    return np.mean([array.asnumpy() for array in arrays], axis=0) if statistics and len(arrays) > 1 else arrays[0].asnumpy()
