"""The trained network as files that any MXNet can run, with a description beside them."""
import json
import os
import shutil
import tempfile

from ..files import replacing


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
