"""``bmx-melius info``: versions, processor, engine and known networks."""

import dataclasses
import importlib
import importlib.util
import os
import platform

from .._version import __version__
from ..deployment.runtime import engine
from ..deployment.runtime.self_test import run_self_test, zoo_layers
from ..process import processor, usable_cores
from ..reporting import table
from .options import add_json_flag, print_json

_EXAMPLES = """\
examples:
  bmx-melius info             # attach the output to bug reports
  bmx-melius info --json
  bmx-melius info --self-test # whether the engine computes correctly on this processor; takes about a minute

The self-test computes all different layers of the networks of the zoo, at 224 x 224, and float layers also with 8-bit integers, with every
instruction set of the engine that this processor has, and compares each bit with the interpreter in NumPy. The exit status is 1 if one
differs.
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
    parser.add_argument('--self-test', action='store_true', help='test the engine on this processor, with every instruction set')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print a table or a JSON object; return 1 if the self-test found an error."""
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
    results = run_self_test(zoo_layers()) if arguments.self_test else []
    if arguments.json:
        tested = {'self_test': [{**dataclasses.asdict(result), 'passed': result.passed} for result in results]} if results else {}
        print_json({**facts, **tested}, output)
    else:
        print(_text(facts), *([_self_test_text(results)] if results else []), sep='\n\n', file=output)
    return 0 if all(result.passed for result in results) else 1


def _self_test_text(results):
    """Return a table of the results of the self-test, and a line for each error."""
    rows = [
        (
            result.instruction_set,
            *(result.binary_layers, result.float_layers, result.int8_layers),
            'equal' if result.passed else f'{_errors(result)} WRONG',
        )
        for result in results
    ]
    lines = [table(('instruction set', 'binary layers', 'float layers', 'int8 layers', 'results'), rows, align='<>>><')]
    for result in results:
        lines += [f'{result.instruction_set}: differs from the interpreter: {layer}' for layer in result.differences]
        lines += [f'{result.instruction_set}: {result.failure}'] * bool(result.failure)
    if not all(result.passed for result in results):
        correct = [result.instruction_set for result in results if result.passed]
        advice = f'; BMX_MELIUS_ISA={correct[-1]} selects kernels that are correct here' if correct else ''
        lines.append(f'The engine is wrong on this processor: please report this output{advice}.')
    return '\n'.join(lines)


def _errors(result):
    return len(result.differences) + bool(result.failure)


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
