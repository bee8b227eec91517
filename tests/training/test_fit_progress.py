"""Progress of `fit` on a terminal."""

import re

from support.terminals import in_terminal

FIT = """
import time
import mxnet as mx
from mxnet import gluon
from bmx_melius.training import fit
net = gluon.nn.Dense(2)
net.initialize()
batches = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.ones((64, 8)), mx.nd.arange(64) % 2), batch_size=16)
fit(net, batches, batches, num_epochs=2, on_batch=lambda training: time.sleep(0.1), on_epoch=lambda training: print('epoch'))
"""


def test_fit_shows_the_batches_of_an_epoch_on_a_terminal_and_nothing_elsewhere():
    shown, done = in_terminal(FIT)
    assert done.returncode == 0 and done.stdout == b'epoch\nepoch\n'
    assert re.search(r'epoch 1 of 2: [1-4] of 4 batches \(\d+%\), \d+ s left', shown) and 'epoch 2 of 2: ' in shown
    _, done = in_terminal(FIT, streams=('stdout',))
    assert done.returncode == 0 and b'batches' not in done.stderr
