import json
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import mxnet as mx
import numpy as np
import pytest
from support.engines import needs_engine
from support.onnx_models import unpacked
from support.python_programs import run_python

from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.bench import figures, float_forms, latency, networks, report, rows
from bmx_melius.bench.comparison import compare
from bmx_melius.bench.peers import mxnet_float
from bmx_melius.bench.rounds import Worker, spread
from bmx_melius.deployment.runtime import engine
from model_zoo import get_model

SHAPE = (1, 3, 32, 32)


def silent(items, description):
    return items


def tiny(**kwargs):
    return get_model('meliusnet_flex', block_numbers=(1, 1), transitions=(96,), classes=10, **kwargs)


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """The prefix of a tiny exported network with mixed bits."""
    prefix = str(tmp_path_factory.mktemp('bench') / 'tiny')
    networks.export(tiny(norm_kwargs={'momentum': 0.0}), prefix, SHAPE)
    return prefix


@pytest.fixture(scope='module')
def packed(exported):
    """The prefix of the packed files of this network."""
    return networks.convert(exported, 'packed', SHAPE)


def outputs(symbol, parameters):
    x = mx.nd.array(np.random.default_rng(7).standard_normal((2, *SHAPE[1:])))
    return float_forms.to_block(symbol, parameters)(x).asnumpy()


# --- float forms ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('form', sorted(float_forms.FORMS))
def test_every_float_form_computes_what_the_exported_graph_computes(exported, form):
    symbol, parameters = float_forms.load_exported(exported)
    expected = mx.gluon.SymbolBlock.imports(f'{exported}-symbol.json', ['data'], f'{exported}-0000.params')(
        mx.nd.array(np.random.default_rng(7).standard_normal((2, *SHAPE[1:])))
    ).asnumpy()
    np.testing.assert_allclose(outputs(*float_forms.FORMS[form](symbol, parameters)), expected, atol=1e-4)


def test_the_fastest_form_has_no_training_terms_and_no_normalization_before_a_sign(exported):
    symbol, _ = float_forms.thresholds(*float_forms.load_exported(exported))
    operators = [node['op'] for node in json.loads(symbol.tojson())['nodes']]
    assert 'BlockGrad' not in operators and 'abs' not in operators
    assert operators.count('broadcast_greater_equal') == 4  # the binary layers


def test_a_channel_with_negative_gamma_keeps_its_normalization(exported):
    symbol, parameters = float_forms.load_exported(exported)
    name = next(name for name in parameters if 'stage1' in name and name.endswith('gamma'))
    parameters[name] = parameters[name].copy()
    parameters[name][3] *= -1
    changed, kept = float_forms.thresholds(symbol, parameters)
    assert name in kept
    np.testing.assert_allclose(outputs(changed, kept), outputs(symbol, parameters), atol=1e-4)


def test_activations_that_give_signs_are_reduced_as_well():
    import bmx_melius as bmx

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.BatchNorm(), bmx.QActivation(), bmx.QConv2D(8, 3, padding=1, in_channels=4))
    net.initialize(mx.init.Normal(1))
    x = mx.nd.random.normal(shape=(2, 4, 5, 5))
    expected = net(x).asnumpy()
    parameters = {name: parameter.data() for name, parameter in net.collect_params().items()}
    changed = float_forms.folded(net(mx.sym.var('data')), parameters)
    assert len(json.loads(changed[0].tojson())['nodes']) < 20
    np.testing.assert_array_equal(float_forms.to_block(*changed)(x).asnumpy(), expected)


# --- comparisons ----------------------------------------------------------------------------------------------------------------------


def peer_file(tmp_path, name, content, packages=None):
    path = tmp_path / f'{name}.py'
    path.write_text(content)
    return types.SimpleNamespace(__file__=str(path), PACKAGES=packages or {})


def test_rows_are_timed_in_separate_processes_on_the_same_input(tmp_path, exported):
    content = (
        'import os\n\ndef prepare(arguments, array, threads):\n    return (lambda: None), {"sum": float(array.sum()), "pid": os.getpid()}\n'
    )
    peer = peer_file(tmp_path, 'told', content)
    pair = [rows.Row(key, key, 'test', peer, SHAPE, 1) for key in 'ab']
    network = rows.Row('c', 'c', 'mxnet', mxnet_float, SHAPE, 1, {'prefix': exported, 'form': 'folded'})
    results = compare([*pair, network], 3, 2, silent)
    assert results['a']['facts']['sum'] == results['b']['facts']['sum']
    assert results['a']['facts']['pid'] != results['b']['facts']['pid']
    assert all(row['seconds'] > 0 and row['spread'] >= 0 for row in results.values())


def test_missing_or_failing_libraries_are_named_and_the_others_are_timed(tmp_path):
    absent = peer_file(tmp_path, 'absent', '', {'no_such_module_anywhere': 'no-such-package'})
    failing = peer_file(tmp_path, 'failing', 'def prepare(*_):\n    print("noise")\n    raise ValueError("a trace\\nthe reason")\n')
    dying = peer_file(tmp_path, 'dying', 'def prepare(*_):\n    import os\n    os._exit(7)\n')
    later = peer_file(tmp_path, 'later', 'def prepare(*_):\n    return (lambda: 1 / 0), {}\n')
    fine = peer_file(tmp_path, 'fine', 'def prepare(*_):\n    return (lambda: None), {}\n')
    peers = {'absent': absent, 'failing': failing, 'dying': dying, 'later': later, 'fine': fine}
    results = compare([rows.Row(key, f'row {key}', 'test', peer, SHAPE, 1) for key, peer in peers.items()], 2, 2, silent)
    assert results['absent']['absent'] == ['no-such-package']
    assert results['failing']['error'] == 'ValueError: the reason'
    assert results['dying']['error'] == 'the process ended with status 7'
    assert results['later']['error'] == 'ZeroDivisionError: division by zero'
    assert 'error' not in results['fine']
    table = report.comparison_table(results, 'fine')
    assert 'pip install no-such-package' in table and 'failed: ValueError: the reason' in table
    assert all(f'row {key}' in table for key in peers)


def test_a_process_that_ends_between_two_rounds_makes_its_row_fail(tmp_path):
    peer = peer_file(tmp_path, 'fine', 'def prepare(*_):\n    return (lambda: None), {}\n')
    np.save(tmp_path / 'x.npy', np.zeros(SHAPE, np.float32))
    worker = Worker(rows.Row('a', 'a', 'test', peer, SHAPE, 1), str(tmp_path / 'x.npy'))
    worker.process.kill()
    worker.process.wait()
    worker.run(1, 1)
    worker.close()
    assert worker.error == 'the process ended with status -9'


def test_the_environment_and_threads_of_a_row_reach_its_process(tmp_path):
    content = (
        'import os\n\ndef prepare(arguments, array, threads):\n'
        '    return (lambda: None), {"set": os.environ["BMX_TEST"], "omp": os.environ["OMP_NUM_THREADS"], "threads": threads}\n'
    )
    row = rows.Row('a', 'a', 'test', peer_file(tmp_path, 'told', content), SHAPE, 2, {}, {'BMX_TEST': 'here'})
    assert compare([row], 1, 1, silent)['a']['facts'] == {'set': 'here', 'omp': '2', 'threads': 2}


def test_every_row_has_a_unique_key_and_a_known_group():
    every = [*rows.network_rows('packed', 'exported', SHAPE, 1), *rows.mobilenet_rows(SHAPE, 1), *rows.layer_rows(1)]
    assert len({row.key for row in every}) == len({row.title for row in every}) == len(every)
    assert {row.group for row in every} == set(rows.GROUPS)
    assert [row.group for row in rows.onnx_rows('packed', 'net.onnx', SHAPE, 1)] == ['packed', 'onnxruntime']


def test_importing_the_rows_imports_no_library_to_compare_with():
    program = (
        'import sys, mxnet\n'  # which imports onnx, where that is installed
        'before = set(sys.modules)\n'
        'import bmx_melius.bench.rows\n'
        'names = {"onnxruntime", "onnx", "tensorflow", "openvino", "larq", "larq_compute_engine", "ai_edge_litert"}\n'
        'print(sorted(names & set(sys.modules) - before))\n'
    )
    assert run_python(program).stdout == '[]\n'


# --- figures --------------------------------------------------------------------------------------------------------------------------


def test_figures_are_ratios_of_the_rows_they_name():
    times = {
        'packed': 2.0,
        'packed two threads': 1.0,
        f'packed batch {rows.BATCH}': 1.6 * rows.BATCH,
        'mxnet float exported': 100.0,
        'mxnet float folded': 60.0,
        'mxnet float thresholds': 50.0,
        'mxnet mobilenet1.0': 8.0,
        'onnxruntime model': 14.0,
        'layer 64@56': 1.0,
        'layer 64@56 openvino': 3.0,
        'layer 64@56 avx2': 2.0,
        'layer 64@56 mxnet avx2': 18.0,
    }
    found = figures.from_rows({key: {'seconds': seconds} for key, seconds in times.items()})
    expected = {
        'speedup_over_mxnet_exported': 50,
        'speedup_over_mxnet_float': 25,
        'speedup_of_two_threads': 2,
        f'throughput_of_batch_{rows.BATCH}_ratio': 1.25,
        'time_to_mxnet_mobilenet1.0_ratio': 0.25,
        'speedup_over_onnxruntime_model': 7,
        'speedup_over_openvino_64@56': 3,
        'speedup_avx2_over_mxnet_avx2_64@56': 9,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert all(value is None for name, value in found.items() if name not in expected)
    assert found.keys() == figures.from_rows({}).keys()


def test_the_spread_is_the_distance_between_the_quartiles():
    assert spread([1.0]) == 0
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == 2


def test_the_floor_is_the_time_of_all_multiplications_at_the_peaks():
    steps = [
        latency.StepTime('00 a', 2.0, 400, 'binary'),
        latency.StepTime('01 b', 3.0, 60, 'float'),
        latency.StepTime('02 c', 1.0, 0, 'float'),
        latency.StepTime('03 d', 4.0, 100, 'int8'),
    ]
    result = figures.from_steps(steps, 10.0, {'binary': 400.0, 'float': 20.0, 'int8': 100.0})
    assert result['floor_ms'] == 5000 and result['floor_ratio'] == 2
    assert result['binary_peak_percent'] == 50 and result['float_peak_percent'] == 100 and result['int8_peak_percent'] == 25


def test_without_a_peak_of_a_kind_there_is_no_floor():
    steps = [latency.StepTime('00 a', 2.0, 400, 'binary'), latency.StepTime('01 b', 4.0, 100, 'int8')]
    result = figures.from_steps(steps, 10.0, {'binary': 400.0, 'float': 20.0, 'int8': 0})
    assert result['binary_peak_percent'] == 50
    assert result['float_peak_percent'] is result['int8_peak_percent'] is result['floor_ms'] is result['floor_ratio'] is None


@needs_engine
def test_every_method_of_the_instruction_set_has_a_peak():
    machine = latency.measure_machine()
    assert all(peak['in_registers'] > 0 and peak['in_cache'] > 0 for peak in machine['peaks'])
    for kind in ('binary', 'float', 'int8'):
        assert machine[f'peak_{kind}_macs_per_second'] == max(peak['in_registers'] for peak in machine['peaks'] if peak['kind'] == kind)
    text = report.machine_lines(machine)
    assert all(peak['method'] in text for peak in machine['peaks'])


def test_busy_programs_end_with_the_process_that_started_them(tmp_path):
    script = (
        'import os, signal\nfrom bmx_melius.bench.rounds import busy_cores\nwith busy_cores(1):\n    os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    output = tmp_path / 'output'
    with open(output, 'w') as file:
        subprocess.run([sys.executable, '-c', script], stdout=file)
    deadline = time.monotonic() + 30
    while any(is_open_in(process, output) for process in pathlib.Path('/proc').glob('[0-9]*')):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_open_in(process, path):
    """Whether the standard output of a process is this file."""
    try:
        return os.path.samefile(process / 'fd' / '1', path)
    except OSError:  # it has ended, or belongs to another user
        return False


# --- the command ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'arguments,expected',
    [
        (['meliusnet22', '--compare', 'torch'], r"unknown library 'torch'; known: packed, mxnet"),
        (['meliusnet99'], r"unknown network 'meliusnet99'"),
        (['meliusnet22', '--input-shape', '1,3,32,32', '--batch', '2'], '--input-shape includes the batch'),
        (['meliusnet22', '--threads', '-1'], 'expected a whole number, 0 for one for each core'),
        (['EXPORTED-packed', '--int8'], 'quantize .*-packed with convert --int8'),
    ],
)
@needs_engine
def test_a_wrong_argument_is_reported_in_one_line(capsys, packed, arguments, expected):
    assert main(['bench', *(packed if argument == 'EXPORTED-packed' else argument for argument in arguments)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    assert re.search(expected, line)


@needs_engine
def test_json_holds_steps_machine_rows_and_every_figure(capsys, monkeypatch):
    monkeypatch.setattr(rows, 'mobilenet_rows', lambda *_: [])  # a network for each would take long
    monkeypatch.setattr(rows, 'LAYERS', ((64, 7),))
    monkeypatch.setattr('model_zoo.get_model', lambda name, **kwargs: tiny(**kwargs))
    assert main(['bench', 'meliusnet22', '--input-size', '32', '--repetitions', '2', '--compare', 'mxnet', '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    assert content['machine']['peak_binary_macs_per_second'] > 0
    assert content['latency']['seconds'] > 0 and content['latency']['images'] == 1
    assert content['working_memory_bytes'] > 0
    binary = [step for step in content['steps'] if step['binary']]
    assert sum(step['macs'] for step in binary) == 9 * 64 * 8 * 8 * (64 + 128) + 9 * 64 * 4 * 4 * (96 + 160)
    errors = {key: row['error'] for key, row in content['comparison'].items() if 'error' in row}
    assert not errors
    assert content['figures'].keys() > figures.from_rows({}).keys()
    assert content['figures']['binary_peak_percent'] > 0
    assert content['figures']['floor_ratio'] > 1 and content['figures']['busy_two_threads_ratio'] > 0
    assert content['figures']['first_result_ms'] > 0 and content['figures']['resident_bytes'] > 0
    assert content['figures']['speedup_over_mxnet_float'] > 0


@needs_engine
@pytest.mark.parametrize('by', ['step', 'kind'])
def test_bench_prints_the_tables_of_a_packed_network_on_disk(capsys, packed, by):
    assert main(['bench', packed, '--batch', '2', '--repetitions', '2', '--by', by]) == 0
    text = capsys.readouterr().out
    for part in ('input 2 x 3 x 32 x 32', '% of peak', 'images/s', 'working memory', ' MB;', 'binary_peak_percent', f'\n{by}'):
        assert part in text


@needs_engine
def test_int8_times_the_network_with_int8_layers_and_its_other_forms(capsys, monkeypatch):
    for group in ('mobilenet_rows', 'layer_rows'):
        monkeypatch.setattr(rows, group, lambda *_: [])
    monkeypatch.setattr('model_zoo.get_model', lambda name, **kwargs: tiny(**kwargs))
    assert main(['bench', 'meliusnet22', '--int8', '--input-size', '32', '--repetitions', '2', '--compare', 'packed', '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    products = {step['name']: step['macs'] for step in content['steps'] if step['kind'] == 'int8'}
    stem = 9 * 16 * 16 * (3 * 32 + 8 * 32 + 4 * 64)
    classifier = next(macs for name, macs in products.items() if name.endswith('10'))
    assert min(products.values()) == classifier and stem in products.values()
    assert not any(step['macs'] for step in content['steps'] if step['kind'] == 'float')
    assert content['figures']['int8_peak_percent'] > 0 and content['figures']['float_peak_percent'] is None
    forms = {key: content['comparison'][f'packed{key}']['facts']['file_bytes'] for key in ('', ' half', ' float')}
    assert content['file_bytes'] == forms[''] < forms[' half'] < forms[' float']
    times = {key: content['comparison'][f'packed{key}'] for key in ('', ' float')}
    for suffix, which in (('', 'seconds'), ('_least', 'least')):
        assert content['figures'][f'time_of_int8_to_float_ratio{suffix}'] == times[''][which] / times[' float'][which]


@needs_engine
@pytest.mark.parametrize('name,shape', [('birealnet-opset17', [1, 3, 16, 16]), ('larq-resnet-e', [2, 3, 16, 16])])
def test_an_onnx_model_is_compared_with_itself_in_onnx_runtime(capsys, tmp_path, name, shape):
    """The models of Larq have the channels last, and any batch."""
    pytest.importorskip('onnxruntime')
    batch = ['--batch', '2'] if shape[0] == 2 else []
    assert main(['bench', str(unpacked(name, tmp_path)), *batch, '--repetitions', '2', '--compare', '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    assert content['input_shape'] == shape
    assert list(content['comparison']) == ['packed', 'onnxruntime model']
    assert all(0 < row['least'] <= row['seconds'] and row['images'] == shape[0] for row in content['comparison'].values())
    assert content['figures']['speedup_over_onnxruntime_model'] > 0


def test_the_peer_of_onnx_models_computes_what_the_packed_network_computes(tmp_path):
    pytest.importorskip('onnxruntime')
    import bmx_melius as bmx
    from bmx_melius.bench.peers import onnx_model

    model = str(unpacked('larq-resnet-e', tmp_path))
    bmx.import_onnx(model, tmp_path / 'packed', zero_is_positive=True)
    x = np.random.default_rng(3).standard_normal((2, 3, 16, 16), dtype=np.float32)
    run, _ = onnx_model.prepare({'file': model}, x, 1)
    logits = bmx.Session(tmp_path / 'packed')(x)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))  # the packed network ends before Softmax
    np.testing.assert_allclose(run()[0], exponentials / exponentials.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('precision', ['float16', 'float32'])
def test_the_peer_of_onnx_models_reads_the_precision_of_the_model(tmp_path, precision):
    pytest.importorskip('onnxruntime')
    import onnx

    from bmx_melius.bench.peers import onnx_model

    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(precision))
    values = [onnx.helper.make_tensor_value_info(name, number, (1, 2)) for name in 'xy']
    graph = onnx.helper.make_graph([onnx.helper.make_node('Relu', ['x'], ['y'])], 'graph', values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 17)], ir_version=8)
    onnx.save(model, tmp_path / 'net.onnx')
    run, _ = onnx_model.prepare({'file': str(tmp_path / 'net.onnx')}, np.float32([[-1, 2]]), 1)
    assert run()[0].tolist() == [[0, 2]]


@needs_engine
def test_an_onnx_model_of_a_fixed_batch_says_why_onnx_runtime_cannot_run_another(capsys, tmp_path):
    pytest.importorskip('onnxruntime')
    model = str(unpacked('birealnet-opset17', tmp_path))
    assert main(['bench', model, '--batch', '2', '--repetitions', '2', '--compare']) == 0
    text = capsys.readouterr().out
    assert 'failed: ' in text and 'least' in text


@pytest.mark.parametrize(
    'arguments,expected',
    [
        (['--compare', 'mxnet'], "unknown library 'mxnet'; known: packed, onnxruntime"),
        (['--input-size', '32'], '--input-size is not for ONNX models: give --input-shape'),
    ],
)
@needs_engine
def test_arguments_that_are_not_for_onnx_models_are_refused(capsys, tmp_path, arguments, expected):
    assert main(['bench', str(unpacked('birealnet-opset17', tmp_path)), *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_without_the_engine_bench_says_what_to_do(monkeypatch):
    from bmx_melius.bench import latency

    monkeypatch.setattr(engine, 'missing', lambda: 'there is no engine: install a compiler')
    with pytest.raises(UserError, match='install a compiler'):
        latency.measure_machine()


def test_help_names_every_peer(capsys):
    with pytest.raises(SystemExit):
        main(['bench', '--help'])
    text = capsys.readouterr().out
    for name in rows.GROUPS[1:]:
        assert name in text
