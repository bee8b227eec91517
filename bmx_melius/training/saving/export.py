"""Export of trained networks as symbol and parameter files with a description, which stock MXNet can run."""

import mxnet as mx

from ...analysis.finiteness import find_not_finite
from ...analysis.summary import Summary
from ...data.imagenet import imagenet_classes
from ...errors import UserError
from ...files.exported import Exported, description_fields
from ...graph.tracing import read_graph

_TRACE_SIZE = 64  # height and width of the image used to trace an imported network; small to be fast


def export_imported(net, target, model, spec):
    """Write a network with imported weights to `target`, an `Exported`; return its counts.

    For `model` and `spec` see `description_fields`. A network of 1000 classes is taken for one of ImageNet, and its classes are named.
    """
    counts = Summary.of(read_graph(net, (1, *spec.shape))).counts
    class_names = imagenet_classes() if model['classes'] == len(imagenet_classes()) else None
    net.hybridize()
    size = getattr(net, 'input_size', None) or _TRACE_SIZE  # of networks that accept one size, and of others
    net(mx.nd.zeros((1, spec.channels, size, size)))
    target.write(net, description_fields(model, spec, counts, class_names))
    return counts


def export_network(folder, net, input_shape, description, metrics):
    """Export a trained network to `folder` in float32; return its files, an `Exported`.

    Parameters
    ----------
    folder : str
    net : gluon.HybridBlock
    input_shape : tuple of int
        (C, H, W).
    description : dict
        Result of `description_fields`.
    metrics : dict
        Losses and accuracies of these weights.

    Raises
    ------
    UserError
        When a parameter is NaN or infinite.
    """
    name = find_not_finite(net)
    if name:
        raise UserError(f'the network is not exported: {name} has values that are NaN or infinite; start a new run with a lower --lr')
    net.cast('float32')
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.zeros((1, *input_shape), ctx=net.collect_params().list_ctx()[0]))
    target = Exported.in_run(folder, description['model']['name'])
    target.write(net, {**description, 'metrics': metrics})
    return target
