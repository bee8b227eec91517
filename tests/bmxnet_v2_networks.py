"""Independent implementation of BMXNet-v2's networks as functions of the arrays of a checkpoint, by their structural names.

Source: the definitions in hpi-xnor/BMXNet-v2-examples, binary_models (basenet_dense, meliusnet, naivenet, resnet_e, common_layers).
No code of this project is used.
"""

from mxnet import nd


class Reference:
    """Computes the logits of a network from images and the arrays of its checkpoint."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __call__(self, x):
        features = self._densely_connected(x) if 'finalize.0.gamma' in self.arrays else self._residual(x)
        features = nd.flatten(nd.Pooling(nd.relu(features), global_pool=True, kernel=(1, 1), pool_type='avg'))
        weight, bias = self.arrays['output.weight'], self.arrays['output.bias']
        return nd.FullyConnected(features, weight, bias, num_hidden=len(bias))

    def _has(self, path):
        return any(name.startswith(path + '.') for name in self.arrays)

    def _densely_connected(self, x):
        x = self._stem(x, 'features.0', 'features.1')
        for layer in range(4):
            stage = f'layer{layer}.0'
            if layer:
                x, stage = self._transition(x, stage), f'layer{layer}.1'
            index = 0
            while self._has(f'{stage}.{index}'):
                x = self._block(x, f'{stage}.{index}')
                index += 1
        return self._norm(x, 'finalize.0')

    def _block(self, x, path):
        if self._has(f'{path}.1'):  # a Dense Block: its input and the new channels
            return nd.concat(x, self._binary_conv(self._norm(x, f'{path}.1.0'), f'{path}.1.1'), dim=1)
        y = self._binary_conv(self._norm(x, f'{path}.body.0'), f'{path}.body.1')
        untouched = x.shape[1] - y.shape[1]
        if not untouched:
            return y + x
        return nd.concat(nd.slice_axis(x, 1, 0, untouched), nd.slice_axis(x, 1, untouched, None) + y, dim=1)

    def _transition(self, x, path):
        x = nd.relu(_max_pool(self._norm(x, f'{path}.0'), 2, 0))
        grouped = f'{path}.4.weight' in self.arrays
        if grouped:
            x = nd.reshape(nd.swapaxes(nd.reshape(x, (0, -4, 16, -1, -2)), 1, 2), (0, -3, -2))
        return self._conv(x, f'{path}.{4 if grouped else 3}')

    def _residual(self, x):
        x = self._norm(x, 'features.0', fix_gamma=True, eps=2e-5)
        x = self._norm(self._stem(x, 'features.1', 'features.2'), 'features.5')
        for stage in range(6, 10):
            index = 0
            while self._has(f'features.{stage}.{index}'):
                path, shortcut = f'features.{stage}.{index}', x
                halved = self._has(f'{path}.downsample')
                if halved:
                    shortcut = nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type='avg')
                    shortcut = self._norm(self._conv(shortcut, f'{path}.downsample.1'), f'{path}.downsample.2')
                x = self._norm(self._binary_conv(x, f'{path}.body.0', 2 if halved else 1), f'{path}.body.1') + shortcut
                index += 1
        return x

    def _stem(self, x, convolutions, norm):
        x = nd.relu(self._norm(self._conv(x, f'{convolutions}.0', stride=2), f'{convolutions}.1'))
        x = nd.relu(self._norm(self._conv(x, f'{convolutions}.3'), f'{convolutions}.4'))
        return _max_pool(nd.relu(self._norm(self._conv(x, f'{convolutions}.6'), norm)), 3, 1)

    def _norm(self, x, path, fix_gamma=False, eps=1e-5):
        parameters = [self.arrays[f'{path}.{kind}'] for kind in ('gamma', 'beta', 'running_mean', 'running_var')]
        return nd.BatchNorm(x, *parameters, fix_gamma=fix_gamma, eps=eps, use_global_stats=True)

    def _conv(self, x, path, stride=1):
        weight = self.arrays[f'{path}.weight']
        kernel = weight.shape[2]
        return nd.Convolution(
            x,
            weight,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pad=(kernel // 2, kernel // 2),
            no_bias=True,
            num_filter=len(weight),
            num_group=x.shape[1] // weight.shape[1],
        )

    def _binary_conv(self, x, path, stride=1):
        weight = self.arrays[f'{path}.qconv.weight']
        x = nd.Pad(_sign(x), mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=-1)
        h = nd.Convolution(x, _sign(weight), kernel=(3, 3), stride=(stride, stride), no_bias=True, num_filter=len(weight))
        return (h + weight[0].size) / 2


class Calibration(Reference):
    """Sets the running statistics in place to those of the images, so that values stay in a reasonable range for random weights."""

    def _norm(self, x, path, **kwargs):
        mean, var = nd.moments(x, axes=(0, 2, 3))
        self.arrays[f'{path}.running_mean'][:] = mean
        self.arrays[f'{path}.running_var'][:] = var + 0.1
        return super()._norm(x, path, **kwargs)


def _sign(x):
    return (x >= 0) * 2 - 1


def _max_pool(x, size, pad):
    return nd.Pooling(x, kernel=(size, size), stride=(2, 2), pad=(pad, pad), pool_type='max')
