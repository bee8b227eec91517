"""The list of networks: names by patterns, and figures from the tables, the weights and the networks themselves."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from support.networks import cases
from support.paths import ROOT

import bmx_melius
from bmx_melius.__main__ import main
from bmx_melius.cli.models import weights_of
from bmx_melius.deployment.runtime.engine import instruction_sets
from bmx_melius.errors import UserError
from model_zoo import get_model, get_model_list, list_models, listing
from model_zoo.published import has_counts
from model_zoo.registry import IMAGENET, find
from model_zoo.store import WEIGHTS

DOCUMENT = (ROOT / 'docs' / 'zoo.md').read_text()
COUNTS = json.loads(listing.COUNTS_FILE.read_text())
TIMES = json.loads(listing.TIMES_FILE.read_text())
PROCESSOR = next(iter(TIMES))


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_network_has_stored_counts():
    assert set(COUNTS) == set(filter(has_counts, get_model_list())), 'run python tools/zoo_counts.py'


@pytest.mark.parametrize('name', cases(COUNTS))
def test_stored_counts_are_those_of_the_network(name):
    assert COUNTS[name] == tool('zoo_counts').count(name), 'run python tools/zoo_counts.py'


@pytest.mark.parametrize('processor', TIMES)
def test_times_are_of_networks_of_the_zoo(processor):
    times = TIMES[processor]['milliseconds']
    assert times and set(times) <= set(get_model_list()), 'run python tools/zoo_times.py'
    assert all(0 < time['least'] <= time['median'] for time in times.values())


def test_times_are_written_and_those_of_other_processors_and_finished_files_stay(monkeypatch, tmp_path):
    zoo_times, file = tool('zoo_times'), tmp_path / 'times.json'
    file.write_text('{"other": {"milliseconds": {"resnet8": {"least": 1, "median": 2}}}, "this": {"milliseconds": {"gone": {}}}}')
    monkeypatch.setattr(zoo_times, 'TIMES_FILE', file)
    monkeypatch.setattr(zoo_times, 'networks', lambda: [find('binary_resnet8'), find('meliusnet_fashion')])

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['zoo_times.py', str(tmp_path / 'packed'), '--processor', 'this', *arguments])
        zoo_times.main()

    run('--repetitions', '1')
    assert list(json.loads(file.read_text())['this']['milliseconds']) == ['meliusnet_fashion']  # what is not packed has no time
    run('--pack', 'binary_resnet8')
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / 'packed').iterdir()}
    assert sorted(path.name for path in files) == ['binary_resnet8-0000.params', 'binary_resnet8-symbol.json']
    run('--pack')
    assert {path: path.stat().st_mtime_ns for path in files} == files
    run('--repetitions', '3')
    written = json.loads(file.read_text())
    assert list(written) == ['other', 'this'] and written['other']['milliseconds']['resnet8'] == {'least': 1, 'median': 2}
    assert written['this']['version'] == bmx_melius.__version__ and written['this']['instruction_set'] in instruction_sets()[1]
    times = written['this']['milliseconds']
    assert list(times) == ['binary_resnet8', 'meliusnet_fashion'] and all(0 < time['least'] <= time['median'] for time in times.values())


def test_names_are_found_by_patterns_and_parts_of_them():
    assert list_models() == get_model_list()
    assert list_models('*melius*', pretrained='larq') == ['meliusnet22']
    assert list_models('MeliusNet2?') == list_models('meliusnet2') == ['meliusnet22', 'meliusnet29']
    assert list_models(pretrained=True) == sorted([*list_models(pretrained='larq'), *list_models(pretrained='bmx-melius')])
    assert list_models(pretrained='larq') == sorted(weights.network for weights in WEIGHTS)
    assert list_models('meliusnet2[29]', pretrained='others') == list_models('nothing') == []


def test_figures_are_those_of_the_paper_and_of_the_weights():
    melius, groupnet, flex = map(listing.describe, ('meliusnet22', 'groupnet18', 'meliusnet_flex'))
    assert (melius.source, melius.accuracies[0]) == ('arXiv:2001.05936', listing.PublishedAccuracy('63.6', 'MeliusNet paper, table 1', {}))
    assert [one.top1 for one in melius.weights] == [62.4] and melius.weights[0].licence == 'Apache-2.0'
    assert round(melius.counts['ops'] / 1e8, 2) == 2.08
    assert groupnet.accuracies[0].top1 == '67.0' and groupnet.accuracies[0].options == {'quantized_shortcuts': False}
    assert flex.counts is None and flex.accuracies == ()
    times = TIMES[PROCESSOR]['milliseconds']
    assert (melius.milliseconds, melius.timed_on) == (times['meliusnet22']['least'], PROCESSOR)
    assert (flex.milliseconds, flex.timed_on) == (None, None) and 'meliusnet_flex' not in times
    e18 = listing.describe('resnet_e18').accuracies
    assert e18[0] == listing.PublishedAccuracy('60.6', 'MeliusNet paper, table 2', {}) and {one.top1 for one in e18} >= {
        '58.1',
        '60.0',
        '60.6',
    }


def test_every_network_has_a_source_and_a_network_of_another_method_that_of_the_documentation():
    sources = {name: listing.describe(name).source for name in get_model_list()}
    assert all(sources.values())
    rows = re.findall(r'^\| (`\w+`(?:, `\w+`)*) \|.*?\[(arXiv:[\d.]+)\]', DOCUMENT, re.MULTILINE)
    documented = {name: source for names, source in rows for name in re.findall(r'\w+', names)}
    assert len(documented) == 65 and {name: sources[name] for name in documented} == documented


def test_the_table_by_year_has_the_figures_of_all_networks_with_an_accuracy_on_imagenet():
    rows = re.findall(
        r'^\| (20\d\d) \| `(\w+)` \| ([\d.]+) \| (.*?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+|-) \| (.*?) \|$', DOCUMENT, re.MULTILINE
    )
    expected = []
    for network in map(listing.describe, get_model_list()):
        best = next((accuracy for accuracy in network.accuracies if not accuracy.options), None)
        if best and network.input_shape == IMAGENET and network.source.startswith('arXiv:'):
            figures = f'{network.counts["ops"] / 1e8:.2f}', f'{network.counts["size_bytes"] / 2**20:.2f}'
            time = f'{network.milliseconds:.2f}' if network.milliseconds else '-'
            weights = (weights_of(network) or '-').replace("authors':", "authors',")
            expected.append((f'20{network.source[6:8]}', network.name, best.top1, best.source, *figures, time, weights))
    assert rows == sorted(expected, key=lambda row: (row[0], -float(row[2]), row[1]))
    assert f'{PROCESSOR}, {TIMES[PROCESSOR]["date"]}' in DOCUMENT


def test_the_command_prints_a_row_for_each_network(capsys):
    assert main(['models', '*melius*2*', '--pretrained']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ['network', 'top-1'] and len([line for line in lines if line.startswith('meliusnet')]) == 1
    for text in ('63.6', '2.08', '3.88', '224 x 224', 'MeliusNet paper, table 1', 'arXiv:2001.05936', 'larq: 62.4 %, Apache-2.0'):
        assert text in lines[2]
    time = TIMES[PROCESSOR]['milliseconds']['meliusnet22']['least']
    assert lines[0].split()[6:8] == ['ms', 'input'] and f'  {time:.2f}  224 x 224' in lines[2]
    assert [line for line in lines if line.startswith('ms: ') and PROCESSOR in line]
    assert main(['models', 'meliusnet_flex']) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[2].split()[1:6] == ['-'] * 5 and PROCESSOR not in output
    assert main(['models', '--json']) == 0
    found = {row['name']: row for row in json.loads(capsys.readouterr().out)}
    assert list(found) == get_model_list() and found['meliusnet22']['weights'][0]['pretrained'] == 'larq'
    assert found['meliusnet22']['size_bytes'] == COUNTS['meliusnet22']['size_bytes']
    assert (found['meliusnet22']['packed_ms'], found['meliusnet22']['timed_on']) == (time, PROCESSOR)
    assert main(['models', 'meliusnet23']) == 2
    error = capsys.readouterr().err
    assert "no network matches 'meliusnet23'; did you mean meliusnet" in error and error.count('\n') == 1


@pytest.mark.parametrize(
    'name,arguments,words',
    [
        ('meliusnet22', {'num_classes': 3}, 'meliusnet22 takes no argument num_classes; did you mean classes'),
        ('meliusnet22', {'initial_layer': 'imagenet'}, 'did you mean initial_layers'),
        ('resnet18_v1', {'num_classes': 3}, 'did you mean classes'),
        ('meliusnet_22a', {}, 'unknown network .* did you mean meliusnet22'),
    ],
)
def test_misspelt_names_and_arguments_get_suggestions(name, arguments, words):
    with pytest.raises(UserError, match=words) as refusal:
        get_model(name, **arguments)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    'kind, arguments',
    [
        *(('file', arguments) for arguments in (['summary', 'meliusnet22'], ['train', '--help'], ['info'])),
        *(('folder', arguments) for arguments in (['models'], ['tables', '--table', '1'])),
    ],
)
def test_a_file_or_folder_of_the_name_of_the_zoo_is_reported(kind, arguments, tmp_path):
    place = tmp_path / 'model_zoo.py' if kind == 'file' else tmp_path / 'model_zoo' / '__init__.py'
    place.parent.mkdir(exist_ok=True)
    place.write_text('mine = 1')
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
    hiding = place if kind == 'file' else place.parent
    assert f'{hiding} has the name of the module model_zoo of bmx_melius' in done.stderr and 'rename it' in done.stderr
