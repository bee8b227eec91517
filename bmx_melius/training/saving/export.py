"""The trained network as files that any MXNet can run, with a description beside them."""

import os

import mxnet as mx

from ...analysis.graph import Graph
from ...analysis.summary import Summary
from ...exported import Exported, description_fields
from ...reporting import LOG

_TRACED = 64  # height and width of the image that an imported network sees before it is exported; any size will do, this one is quick


def export_imported(net, target, model, spec):
    """Write a network that got its weights from a file to an `Exported`; return its counts. `description_fields` has `model` and `spec`."""
    counts = Summary.of(Graph.read(net, (1, *spec.shape))).counts
    net.hybridize()
    net(mx.nd.zeros((1, spec.channels, _TRACED, _TRACED)))
    target.write(net, description_fields(model, spec, counts))
    return counts


def export_network(folder, net, input_shape, description, metrics):
    """Write the trained network to `folder` as files for any MXNet.

    Parameters
    ----------
    folder : str
    net : gluon.HybridBlock
    input_shape : tuple of int
        (C, H, W).
    description : dict
        As `description_fields` gives it.
    metrics : dict
        The row of the history whose weights these are.
    """
    net.cast('float32')
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.zeros((1, *input_shape), ctx=net.collect_params().list_ctx()[0]))
    target = Exported(os.path.join(folder, description['model']['name']))
    target.write(net, {**description, 'metrics': metrics})
    LOG.info(
        'the best network is that of epoch %d: top-1 %.2f%%, top-5 %.2f%%; exported to %s and %s',
        metrics['epoch'],
        100 * metrics['top1'],
        100 * metrics['top5'],
        target.symbol_file,
        target.parameter_file(0),
    )
