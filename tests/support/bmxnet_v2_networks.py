"""Independent implementation of BMXNet-v2's networks as functions of the arrays of a checkpoint, by their structural names.

Source: the definitions in hpi-xnor/BMXNet-v2-examples, binary_models (basenet_dense, meliusnet, naivenet, resnet, resnet_e, binet, vgg,
alexnet, common_layers).
No code of this project is used.
"""

from mxnet import nd


class Reference:
    """Computes the logits of a network from images and the arrays of its checkpoint.

    `pooled_shortcuts`: whether shortcuts halve a map by pooling instead of the stride of their convolution, which arrays do not tell.
    """

    def __init__(self, arrays, pooled_shortcuts=True):
        self.arrays, self.pooled_shortcuts = arrays, pooled_shortcuts

    def __call__(self, x):
        if 'features.0.bias' in self.arrays:
            return self._plain(x)
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
        if self._has('features.1.0'):
            x, index = self._stem(x, 'features.1', 'features.2'), 5
        elif self.arrays['features.1.weight'].shape[2] == 7:
            x = nd.relu(self._norm(self._conv(x, 'features.1', stride=2), 'features.2'))
            x, index = _max_pool(x, 3, 1), 5
        else:
            x, index = self._conv(x, 'features.1'), 2
        stage = 0
        while self._has(f'features.{index}'):
            if f'features.{index}.gamma' in self.arrays:
                x = self._norm(x, f'features.{index}')
            else:
                x, stage = self._stage(x, f'features.{index}', halving=stage > 0), stage + 1
            index += 1
        return x

    def _stage(self, x, path, halving):
        blocks, part = 0, 0
        while self._has(f'{path}.{blocks}'):
            block, stride = f'{path}.{blocks}', 2 if halving and blocks == 0 else 1
            before = x
            if self._has(f'{block}.bn'):
                x = self._norm(x, f'{block}.bn')
            shortcut = self._shortcut(x, f'{block}.downsample', stride) if self._has(f'{block}.downsample') else before
            if self._has(f'{block}.layer1'):  # shortcuts around both convolutions
                x = self._norm(self._binary_conv(x, f'{block}.layer1.1', stride), f'{block}.layer1.2') + shortcut
                x = self._norm(self._binary_conv(x, f'{block}.layer2.1'), f'{block}.layer2.2') + x
            else:
                y, layer = x, 0
                while self._has(f'{block}.body.{layer}'):
                    if f'{block}.body.{layer}.gamma' in self.arrays:
                        y = self._norm(y, f'{block}.body.{layer}')
                    else:
                        y = self._binary_conv(y, f'{block}.body.{layer}', stride if layer == 0 else 1)
                    layer += 1
                width = y.shape[1]
                zeros = nd.concat(*[nd.zeros_like(y)] * (shortcut.shape[1] // width), dim=1)
                zeros[:, part * width : (part + 1) * width] = y
                x = shortcut + zeros
                if shortcut.shape[1] > width:
                    part = (part + 1) % (shortcut.shape[1] // width)
            blocks += 1
        return x

    def _shortcut(self, x, path, stride):
        pooled = self.pooled_shortcuts
        if pooled:
            x = nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type='avg')
        conv = f'{path}.{int(pooled)}'
        if f'{conv}.qconv.weight' in self.arrays:
            x = self._binary_conv(x, conv, 1 if pooled else stride)
        elif self._has(path.replace('downsample', 'layer1')):  # binary weights, and a real input
            weight = self.arrays[f'{conv}.weight']
            h = nd.Convolution(x, _sign(weight), kernel=(1, 1), no_bias=True, num_filter=len(weight))
            x = (h + weight[0].size) / 2
        else:
            x = self._conv(x, conv, 1 if pooled else stride)
        norm = f'{path}.{int(pooled) + 1}'
        return self._norm(x, norm) if self._has(norm) else x

    def _plain(self, x):
        """VGG and AlexNet: binary weights with real inputs; where layers without parameters are follows from gaps in the numbers."""
        names = sorted({int(name.split('.')[1]) for name in self.arrays if name.startswith('features.')})
        is_alexnet = self.arrays['features.0.weight'].shape[2] == 11
        for index, following in zip(names, [*names[1:], None]):
            if f'features.{index}.gamma' in self.arrays:
                x = self._norm(x, f'features.{index}')
            else:
                weight = self.arrays[f'features.{index}.weight']
                if index == 0:
                    stride, pad = ((4, 4), (2, 2)) if is_alexnet else ((1, 1), (1, 1))
                    bias = self.arrays['features.0.bias']
                    x = nd.Convolution(x, weight, bias, kernel=weight.shape[2:], stride=stride, pad=pad, num_filter=len(weight))
                elif weight.ndim == 2:
                    x = (nd.dot(nd.flatten(x), _sign(weight).T) + weight[0].size) / 2
                    continue
                else:
                    pad = weight.shape[2] // 2
                    x = nd.Pad(x, mode='constant', pad_width=(0, 0, 0, 0, *(pad,) * 4), constant_value=-1)
                    h = nd.Convolution(x, _sign(weight), kernel=weight.shape[2:], no_bias=True, num_filter=len(weight))
                    x = (h + weight[0].size) / 2
            if f'features.{following}.gamma' in self.arrays:
                continue
            x = nd.relu(x) if index == 0 or not is_alexnet else x
            if following - index > (1 if is_alexnet else 2):
                x = nd.Pooling(x, kernel=(3, 3) if is_alexnet else (2, 2), stride=(2, 2), pool_type='max')
        weight, bias = self.arrays['output.weight'], self.arrays['output.bias']
        return nd.FullyConnected(x, weight, bias, num_hidden=len(bias))

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
        weight = self.arrays.get(f'{path}.qconv.weight')
        weight = self.arrays[f'{path}.weight'] if weight is None else weight
        pad = weight.shape[2] // 2
        x = nd.Pad(_sign(x), mode='constant', pad_width=(0, 0, 0, 0, *(pad,) * 4), constant_value=-1)
        h = nd.Convolution(x, _sign(weight), kernel=weight.shape[2:], stride=(stride, stride), no_bias=True, num_filter=len(weight))
        return (h + weight[0].size) / 2


class Calibration(Reference):
    """Sets the running statistics in place from the images, so that values stay in a reasonable range for random weights."""

    def _norm(self, x, path, **kwargs):
        mean, var = nd.moments(x, axes=(0, 2, 3))
        self.arrays[f'{path}.running_mean'][:] = mean
        self.arrays[f'{path}.running_var'][:] = var + 0.1
        return super()._norm(x, path, **kwargs)


def _sign(x):
    return (x >= 0) * 2 - 1


def _max_pool(x, size, pad):
    return nd.Pooling(x, kernel=(size, size), stride=(2, 2), pad=(pad, pad), pool_type='max')
