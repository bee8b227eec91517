"""LeNet of BMXNet-v2's example mnist-lenet on handwritten digits: train with binary layers, export, pack, and compare.

The first convolution and the output layer are full-precision, the second convolution and the hidden layer binary. The digits are taken from
scikit-learn, enlarged to the 28 x 28 pixels of MNIST.
"""

import argparse
import pathlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

import bmx_melius as bmx

TRAINED = 1500  # digits for training; the other 297 are for validation


def lenet(channels=64, hidden=1000):
    """Return the network: input (N, 1, 28, 28), output (N, 10) logits."""
    net = nn.HybridSequential(prefix='lenet_')
    with net.name_scope():
        net.add(nn.Conv2D(channels, kernel_size=5), nn.Activation('tanh'), nn.MaxPool2D(2, 2), nn.BatchNorm())
        net.add(bmx.QActivation(threshold=1.0), bmx.QConv2D(channels, kernel_size=5), nn.BatchNorm(), nn.MaxPool2D(2, 2), nn.Flatten())
        net.add(bmx.QActivation(threshold=1.0), bmx.QDense(hidden), nn.BatchNorm(), nn.Activation('tanh'), nn.Dense(10))
    return net


def digits():
    """Return training and validation digits, each as arrays (N, 1, 28, 28) float32 from 0 to 1 and (N,)."""
    found = load_digits()
    images = np.pad(np.kron(found.images / 16, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))[:, None].astype(np.float32)
    return (images[:TRAINED], found.target[:TRAINED]), (images[TRAINED:], found.target[TRAINED:])


def accuracy(net, images, labels):
    """Return the top-1 accuracy of a network."""
    return float((net(mx.nd.array(images)).argmax(axis=1).asnumpy() == labels).mean())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--folder', type=pathlib.Path, default=pathlib.Path('out', 'lenet'), help='for the files (default: %(default)s)')
    parser.add_argument('--epochs', type=int, default=10, help='default: %(default)s')
    parser.add_argument('--channels', type=int, default=64, help='of both convolutions (default: %(default)s)')
    parser.add_argument('--hidden', type=int, default=1000, help='units of the hidden layer (default: %(default)s)')
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    (images, labels), validation = digits()

    mx.random.seed(0)
    np.random.seed(0)
    net = lenet(options.channels, options.hidden)
    net.initialize(mx.init.Xavier(magnitude=2.24))
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.001})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    batches = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), batch_size=50, shuffle=True)
    for epoch in range(options.epochs):
        for data, label in batches:
            with autograd.record():
                mean_loss = loss(net(data), label).mean()
            mean_loss.backward()
            trainer.step(1)
        print(f'epoch {epoch + 1}: loss {mean_loss.asscalar():.3f}, validation top-1 {accuracy(net, *validation):.1%}')

    prefix, packed = options.folder / 'lenet', options.folder / 'lenet-packed'
    net.export(str(prefix))
    print(bmx.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', str(packed), (1, *images.shape[1:])))
    answers = bmx.Session(str(packed))(validation[0])
    print(f'packed: validation top-1 {(answers.argmax(axis=1) == validation[1]).mean():.1%}')


if __name__ == '__main__':
    main()
