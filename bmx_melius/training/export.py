"""The trained network as files that any MXNet can run, with a description beside them."""
import json
import os
import shutil
import tempfile

import mxnet as mx

from ..files import replacing
from .report import LOG


def export(net, prefix, description):
    """Write ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and ``PREFIX-summary.json``.

    Parameters
    ----------
    net : gluon.HybridBlock
        Hybridized, and run at least once since.
    prefix : str
    description : dict
        The content of the summary: `model` (arguments of `get_model`), `input` (of `InputSpec.to_json`), `class_names` (list or None),
        `counts` (totals of `bmx_melius.summary`) and `metrics`.
    """
    folder, name = os.path.split(prefix)
    with tempfile.TemporaryDirectory(dir=folder or '.', prefix='.export-') as scratch:
        net.export(os.path.join(scratch, name))
        for suffix in ('-0000.params', '-symbol.json'):
            with replacing(prefix + suffix) as temporary:
                shutil.copyfile(os.path.join(scratch, name + suffix), temporary)
    with replacing(prefix + '-summary.json') as temporary, open(temporary, 'w', encoding='utf-8') as file:
        json.dump(description, file, indent=1)


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
    export(net, prefix, {'model': model, 'input': source.spec.to_json(), 'class_names': source.class_names, 'counts': counts,
                         'metrics': metrics})
    LOG.info('the best network is that of epoch %d: top-1 %.2f%%, top-5 %.2f%%; exported to %s-symbol.json and %s-0000.params',
             metrics['epoch'], 100 * metrics['top1'], 100 * metrics['top5'], prefix, prefix)
