"""``bmx-melius info``: versions, processor, engine and known networks."""

import importlib
import importlib.util
import json
import os
import platform

from .._version import __version__
from ..deployment.runtime import engine
from ..process import processor, usable_cores
from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius info             # attach the output to bug reports
  bmx-melius info --json
"""
_FEATURES = ('MKLDNN', 'OPENMP', 'CUDA', 'CUDNN', 'OPENCV')  # of MXNet: those that determine its speed and whether it can decode images


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'info',
        help='show versions, processor, engine and known networks',
        epilog=_EXAMPLES,
        description='Show versions, the features of MXNet, the processor, the engine for packed networks and the known networks.',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print a table or a JSON object."""
    versions = {name: _version(name) for name in ('mxnet', 'gluoncv', 'numpy')}
    facts = {
        'versions': {'bmx-melius': __version__, 'python': platform.python_version(), **versions},
        **(_mxnet() if versions['mxnet'] else {'mxnet_features': {}, 'gpus': None}),
        'cpu': {
            'model': processor(),
            'architecture': platform.machine(),
            'cores': os.cpu_count(),
            'usable_cores': usable_cores(),
            'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS'),
        },
        'engine': _engine(with_mxnet=bool(versions['mxnet'])),
        'networks': _networks() if versions['mxnet'] and versions['gluoncv'] else [],
    }
    if arguments.json:
        json.dump(facts, output, indent=1)
        print(file=output)
    else:
        print(_text(facts), file=output)


def _text(facts):
    cpu, engine = facts['cpu'], facts['engine']
    lines = [(name, version or 'not installed') for name, version in facts['versions'].items()]
    if facts['mxnet_features']:
        features = facts['mxnet_features'].items()
        lines += [
            ('MXNet with', ', '.join(name for name, enabled in features if enabled) or 'none of ' + ', '.join(_FEATURES)),
            ('MXNet without', ', '.join(name for name, enabled in features if not enabled) or '-'),
            ('GPUs', facts['gpus']),
        ]
    lines += [
        ('CPU', f'{cpu["model"]} ({cpu["architecture"]})'),
        ('cores', f'{cpu["usable_cores"]} of {cpu["cores"]} usable, OMP_NUM_THREADS {cpu["OMP_NUM_THREADS"] or "not set"}'),
        ('engine', engine['problem'] or f'uses {engine["isa"]}, of {", ".join(engine["available_isas"])}'),
    ]
    if engine['default_threads']:
        lines.append(('threads', f'{engine["default_threads"]} by default in a run of the engine'))
    if facts['versions']['mxnet']:
        operator = 'compiled operator' if engine['mxnet_operator'] else 'operator in Python; install bmx-melius again to compile it'
        lines.append(('in MXNet', operator))
    lines.append(('networks', ', '.join(facts['networks']) or 'none without MXNet and GluonCV; packed networks can be run'))
    return '\n'.join(f'{name:<14} {value}' for name, value in lines)


def _version(package):
    """Return the version of a package, or None if it is not installed."""
    return importlib.import_module(package).__version__ if importlib.util.find_spec(package) else None


def _networks():
    from model_zoo import get_model_list

    return get_model_list()


def _mxnet():
    import mxnet as mx

    features = mx.runtime.Features()
    return {'mxnet_features': {name: features.is_enabled(name) for name in _FEATURES}, 'gpus': mx.context.num_gpus()}


def _engine(with_mxnet):
    """Return facts about the compiled libraries and the instruction sets that they use, a dict."""
    compiled = False
    if with_mxnet:
        from ..deployment.runtime import mxnet_operator

        compiled = mxnet_operator.compiled()
    isa, available = engine.instruction_sets()
    return {
        'isa': isa,
        'available_isas': available,
        'default_threads': engine.default_threads(),
        'problem': engine.missing() or None,
        'mxnet_operator': compiled,
        'BMX_MELIUS_ISA': os.environ.get('BMX_MELIUS_ISA'),
    }
