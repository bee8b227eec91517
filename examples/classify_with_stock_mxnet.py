"""Run an exported network with MXNet only: this file does not import this project.

    python classify_with_stock_mxnet.py PREFIX INPUTS.npy OUTPUTS.npy

Loads PREFIX-symbol.json and PREFIX-0000.params, reads preprocessed images (N, channels, height, width) float32 from INPUTS.npy and writes
logits (N, classes) to OUTPUTS.npy.
"""

import sys
import warnings

import mxnet as mx
import numpy as np

BATCH = 64


def main(prefix, inputs, outputs):
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='Cannot decide type')  # dtype of the input, which is float32
        net = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    images = np.load(inputs)
    np.save(outputs, np.concatenate([net(mx.nd.array(images[first : first + BATCH])).asnumpy() for first in range(0, len(images), BATCH)]))
    foreign = [name for name in sys.modules if name.split('.')[0] in ('bmx_melius', 'model_zoo', 'gluoncv')]
    if foreign:
        sys.exit(f'this process must use only MXNet, but imported {foreign}')


if __name__ == '__main__':
    main(*sys.argv[1:])
