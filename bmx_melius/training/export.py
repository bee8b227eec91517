"""The trained network as files that any MXNet can run, with a description beside them."""
import json
import os
import shutil
import tempfile

import mxnet as mx

from ..files import replacing
from ..graph import Graph
from ..summary import Summary
from .report import LOG

_TRACED = 64  # height and width of the image that an imported network sees before it is exported; any size will do, this one is quick


def export(net, prefix, model, spec, counts, class_names=None, **more):
    """Write ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and ``PREFIX-summary.json``.

    Parameters
    ----------
    net : gluon.HybridBlock
        Hybridized, and run at least once since.
    prefix : str
    model : dict
        Arguments of `get_model`.
    spec : InputSpec
        What an image goes through.
    counts : dict
        Of `Summary.counts`.
    class_names : list of str or None
    **more
        Further fields of the summary, for JSON.
    """
    folder, name = os.path.split(prefix)
    with tempfile.TemporaryDirectory(dir=folder or '.', prefix='.export-') as scratch:
        net.export(os.path.join(scratch, name))
        for suffix in ('-0000.params', '-symbol.json'):
            with replacing(prefix + suffix) as temporary:
                shutil.copyfile(os.path.join(scratch, name + suffix), temporary)
    with replacing(prefix + '-summary.json') as temporary, open(temporary, 'w', encoding='utf-8') as file:
        json.dump({'model': model, 'input': spec.to_json(), 'class_names': class_names, 'counts': counts, **more}, file, indent=1)


def export_imported(net, prefix, model, spec):
    """Write a network that got its weights from a file, by `export`; return its counts. Arguments as there."""
    counts = Summary.of(Graph.read(net, (1, *spec.shape))).counts
    net.hybridize()
    net(mx.nd.zeros((1, spec.channels, _TRACED, _TRACED)))
    export(net, prefix, model, spec, counts)
    return counts


def export_network(folder, net, source, model, counts, metrics):
    """Write the trained network to `folder` as files for any MXNet, by `export`.

    Parameters
    ----------
    folder : str
    net : gluon.HybridBlock
    source : Source
        That it was trained on.
    model : dict
        Arguments of `get_model`.
    counts : dict
        Of `Summary.counts`.
    metrics : dict
        The row of the history whose weights these are.
    """
    net.cast('float32')
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.zeros((1, *source.spec.shape), ctx=net.collect_params().list_ctx()[0]))
    prefix = os.path.join(folder, model['name'])
    export(net, prefix, model, source.spec, counts, source.class_names, metrics=metrics)
    LOG.info('the best network is that of epoch %d: top-1 %.2f%%, top-5 %.2f%%; exported to %s-symbol.json and %s-0000.params',
             metrics['epoch'], 100 * metrics['top1'], 100 * metrics['top5'], prefix, prefix)
