"""The command line: what it prints, what it writes, and how it fails."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest.mock

import cv2
import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from support.classifiers import NAMES, SPEC, classifier, describe, write_image

import model_zoo
from bmx_melius import BinaryConv2D, convert
from bmx_melius.__main__ import build_parser, main
from bmx_melius.analysis.summary import summary
from bmx_melius.cli import mxnet_networks, tables
from bmx_melius.files.parameters import read_arrays
from bmx_melius.vision.preprocessing import InputSpec

COMMAND = [sys.executable, '-m', 'bmx_melius']


@pytest.fixture(scope='module')
def network():
    mx.random.seed(1)
    return classifier(nn.Conv2D(8, 3, 2), nn.BatchNorm(), BinaryConv2D(16, 3, padding=1))


@pytest.fixture
def exported(network, tmp_path):
    """The prefix of an exported network with a description beside it."""
    prefix = tmp_path / 'net'
    network.export(str(prefix))
    describe(prefix)
    return prefix


def softmax(logits):
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    return exponentials / exponentials.sum()


# --- summary --------------------------------------------------------------------------------------------------------------------------


def test_summary_of_a_model_is_the_summary_of_its_block(run):
    counted = summary(model_zoo.get_model('meliusnet22', classes=10, initial_layers='thumbnail'), (1, 3, 64, 64))
    arguments = ('summary', 'MeliusNet_22', '--classes', 10, '--initial-layers', 'thumbnail', '--input-size', 64)
    status, output, _ = run(*arguments, '--json')
    fields = json.loads(output)
    assert status == 0 and {key: fields[key] for key in counted.counts} == counted.counts
    assert [{**row, 'name': None} for row in fields['layers']] == [{**layer.to_json(), 'name': None} for layer in counted.layers]
    assert fields['input_shape'] == [1, 3, 64, 64]
    status, output, _ = run(*arguments)
    assert status == 0 and f'{counted.ops:,.0f}' in output and len(output.splitlines()) > len(counted.layers)


def test_summary_by_kind_shows_the_share_of_each_kind(run):
    status, output, _ = run('summary', 'meliusnet22', '--by', 'kind', '--json')
    fields = json.loads(output)
    assert status == 0 and fields['bops'] == 4624220160 and 'layers' not in fields
    assert [row['kind'] for row in fields['kinds']] == [
        'first convolution',
        'other k x k convolution',
        '1x1 convolution',
        'binary layer',
        'output layer',
        'normalization',
    ]
    assert sum(row['share'] for row in fields['kinds']) == pytest.approx(1)
    assert fields['kinds'][0]['macs'] == 112 * 112 * 32 * 3 * 9
    _, output, _ = run('summary', 'meliusnet22', '--by', 'kind')
    assert '34.7%' in output  # binary layers: 4624220160 / 64 / 208130048


def test_summary_of_an_exported_symbol_takes_the_input_from_its_description(run, network, exported):
    for name in (f'{exported}-symbol.json', exported):
        status, output, _ = run('summary', name, '--json')
        assert status == 0 and json.loads(output)['input_shape'] == [1, 3, 24, 24]
        assert json.loads(output)['ops'] == summary(network, (1, 3, 24, 24)).ops
    _, output, _ = run('summary', exported, '--json', '--input-shape', '2,3,30,30')
    assert json.loads(output)['ops'] == summary(network, (2, 3, 30, 30)).ops


def test_summary_of_a_packed_network_counts_its_binary_layers(run, network, exported, tmp_path):
    convert(f'{exported}-symbol.json', f'{exported}-0000.params', tmp_path / 'packed', (1, *SPEC.shape))
    expected = summary(network, (1, *SPEC.shape))
    for name in (tmp_path / 'packed', tmp_path / 'packed-symbol.json'):
        status, output, _ = run('summary', name, '--json', '--plot', tmp_path / 'net.gv')
        fields = json.loads(output)
        assert status == 0 and {key: fields[key] for key in ('bops', 'flops', 'ops')} == {
            key: expected.counts[key] for key in ('bops', 'flops', 'ops')
        }
        assert fields['binary_params'] == expected.binary_params == 16 * 8 * 9
    assert 'binary convolution 3' in (tmp_path / 'net.gv').read_text() and 'sign' in (tmp_path / 'net.gv').read_text()
    _, output, _ = run('summary', tmp_path / 'packed')
    assert f'{expected.bops:,}' in output and '1,152 binary' in output


def test_summary_draws_the_network(run, tmp_path):
    status, output, errors = run('summary', 'meliusnet22', '--json', '--plot', tmp_path / 'net.gv')
    assert status == 0 and json.loads(output)['bops'] == 4624220160 and 'net.gv' in errors
    assert '208.1 M OPs, 3.88 MB' in (tmp_path / 'net.gv').read_text()


def test_mistakes_in_the_arguments_of_summary_are_one_line(fails, exported, tmp_path):
    fails(['summary', 'meliusnet23'], 'meliusnet23', 'meliusnet22')
    fails(['summary', tmp_path / 'none-symbol.json'], 'none-symbol.json', 'No such file')
    fails(['summary', 'meliusnet22', '--input-size', '0'], '--input-size', "'0'", '--help')
    fails(['summary', 'meliusnet22', '--input-shape', '1,3,x'], '--input-shape', "'x'")
    fails(['summary', 'meliusnet22', '--input-shape', '1,3,224'], 'node', '(1, 3, 224)')
    fails(['summary', 'meliusnet22', '--initial-layers', 'stemless'], 'stemless', 'grouped_stem')
    fails(['summary', exported, '--classes', '3'], '--classes')
    fails(['summary', 'meliusnet22', '--plot', tmp_path / 'net.jpeg'], 'net.jpeg', '.pdf')
    fails(['summary', 'meliusnet22', '--plot', tmp_path / 'none' / 'net.gv'], 'none')
    fails(['summary'], 'MODEL')
    fails(['sumary'], 'sumary', 'summary')
    (tmp_path / 'net-summary.json').write_text('{"input": ')
    fails(['summary', exported], 'net-summary.json', 'damaged')


# --- predict --------------------------------------------------------------------------------------------------------------------------


def test_predict_gives_the_most_probable_classes_of_the_network(run, network, exported, tmp_path):
    images = [write_image(tmp_path / f'{seed}.png', seed=seed) for seed in range(2)]
    status, output, errors = run('predict', exported, *images, '--top', 3, '--json')
    assert status == 0 and errors == ''
    for image, prediction in zip(images, json.loads(output)['predictions']):
        expected = softmax(network(SPEC.load(image)).asnumpy()[0])
        assert prediction['image'] == str(image)
        assert [row['class'] for row in prediction['top']] == list(np.argsort(-expected)[:3])
        assert [row['name'] for row in prediction['top']] == [NAMES[row['class']] for row in prediction['top']]
        assert [row['probability'] for row in prediction['top']] == pytest.approx(sorted(expected, reverse=True)[:3], rel=1e-5)
    status, output, _ = run('predict', f'{exported}-symbol.json', images[0], '--top', 99)
    assert status == 0 and output.splitlines()[0] == str(images[0])
    assert len(output.splitlines()) == 1 + len(NAMES) and all(name in output for name in NAMES)


def test_predict_without_a_description_uses_the_options_and_imagenet(run, network, exported, tmp_path):
    image = write_image(tmp_path / 'image.jpg')
    os.remove(f'{exported}-summary.json')

    def probabilities(*options):
        status, output, errors = run('predict', exported, image, '--json', '--top', 7, *options)
        assert status == 0 and ('ImageNet' in errors) == (not options)
        return {row['class']: row['probability'] for row in json.loads(output)['predictions'][0]['top']}

    for options, spec in (
        ((), InputSpec()),
        (('--input-size', 28), InputSpec(size=28, resize=32)),
        (
            ('--input-size', 24, '--resize', 0, '--mean=1,2,3', '--std=4,5,6'),
            InputSpec(size=24, resize=None, mean=(1, 2, 3), std=(4, 5, 6)),
        ),
    ):
        expected = softmax(network(spec.load(image)).asnumpy()[0])
        assert probabilities(*options) == pytest.approx(dict(enumerate(expected)), rel=1e-5)


def test_predict_accepts_gray_and_transparent_images(run, network, exported, tmp_path):
    gray = write_image(tmp_path / 'gray.png', channels=1)
    transparent = write_image(tmp_path / 'transparent.png', channels=4)
    rgb = write_image(tmp_path / 'rgb.png')
    cv2.imwrite(str(rgb), cv2.imread(str(transparent), cv2.IMREAD_UNCHANGED)[..., :3])
    colours = tmp_path / 'gray-in-colour.png'
    cv2.imwrite(str(colours), cv2.cvtColor(cv2.imread(str(gray), cv2.IMREAD_GRAYSCALE), cv2.COLOR_GRAY2BGR))
    _, output, _ = run('predict', exported, gray, colours, transparent, rgb, '--json')
    a, b, c, d = (prediction['top'] for prediction in json.loads(output)['predictions'])
    assert a == b and c == d and a != c


def test_predict_reads_the_files_of_an_exported_network_once(run, exported, tmp_path, monkeypatch):
    """Here they are gone after that."""
    image = write_image(tmp_path / 'image.png')
    expected = run('predict', exported, image, '--json')

    def read_and_remove(path):
        arrays = read_arrays(path)
        os.remove(path)
        os.remove(f'{exported}-symbol.json')
        return arrays

    monkeypatch.setattr(mxnet_networks, 'read_arrays', read_and_remove)
    assert run('predict', exported, image, '--json') == expected and expected[0] == 0


def test_predict_does_not_apply_softmax_to_probabilities(run, network, exported, tmp_path):
    image = write_image(tmp_path / 'image.png')
    before = run('predict', exported, image, '--json')[1]
    mx.sym.softmax(mx.sym.load(f'{exported}-symbol.json')).save(f'{exported}-symbol.json')
    after = run('predict', exported, image, '--json')[1]
    rows = [[row['probability'] for row in json.loads(text)['predictions'][0]['top']] for text in (before, after)]
    assert rows[1] == pytest.approx(rows[0], rel=1e-4)


def test_predict_names_classes_from_a_file(run, fails, exported, tmp_path):
    image, names = write_image(tmp_path / 'image.png'), tmp_path / 'names.txt'
    names.write_text('\n'.join(f'kind {i}' for i in range(7)) + '\n\n')
    _, output, _ = run('predict', exported, image, '--classes-file', names)
    assert output.count('kind ') == 5 and not any(name in output for name in NAMES)
    names.write_text('one\ntwo\n')
    fails(['predict', exported, image, '--classes-file', names], 'names.txt', '2 classes', 'has 7')
    fails(['predict', exported, image, '--classes-file', tmp_path / 'none.txt'], 'none.txt')
    describe(exported, class_names=['one'])
    fails(['predict', exported, image], 'net-summary.json', '1 class,')


def predicted(output):
    """The images and their most probable classes in the JSON object that predict has printed."""
    return [(prediction['image'], prediction['top'][0]['class']) for prediction in json.loads(output)['predictions']]


def test_predict_classifies_the_images_in_a_folder_in_the_order_of_their_names(run, exported, tmp_path):
    folder = tmp_path / 'photos'
    (folder / 'inner').mkdir(parents=True)
    images = [write_image(folder / name, seed=seed) for seed, name in enumerate(['a.png', 'b.JPG', 'c.tiff', 'd.bmp'])]
    inner = write_image(folder / 'inner' / 'z.png', seed=9)
    (folder / 'notes.txt').write_text('no image')
    status, output, errors = run('predict', exported, inner, folder, '--json')
    expected = predicted(run('predict', exported, inner, *images, '--json')[1])
    assert status == 0 and predicted(output) == expected and [image for image, _ in expected] == [str(inner), *map(str, images)]
    assert errors.splitlines() == [
        f'note: not classified in {folder}: 1 other file; JPEG, PNG, BMP, TIFF, GIF, WebP, Netpbm or NPY files can be'
    ]


def test_predict_names_unreadable_files_after_the_predictions_for_all_others(run, exported, tmp_path):
    images = [write_image(tmp_path / f'{seed}.png', seed=seed) for seed in range(4)]
    for number in (1, 2):
        (tmp_path / f'{number}.png').write_bytes(b'no image')
    status, output, errors = run('predict', exported, tmp_path, tmp_path / 'none.jpg', '--json')
    assert status == 2 and [image for image, _ in predicted(output)] == [str(images[0]), str(images[3])]
    (line,) = [line for line in errors.splitlines() if not line.startswith('note:')]
    assert line.startswith('error: 3 of 5 images cannot be read: ')
    assert all(str(tmp_path / name) in line for name in ('1.png', '2.png', 'none.jpg')) and '0.png' not in line


def test_predict_refuses_a_folder_without_images(fails, exported, tmp_path):
    (tmp_path / 'empty').mkdir()
    fails(['predict', exported, tmp_path / 'empty'], 'empty has no JPEG, PNG, BMP, TIFF, GIF, WebP, Netpbm or NPY files')
    (tmp_path / 'photos' / 'cat').mkdir(parents=True)
    fails(['predict', exported, tmp_path / 'photos'], 'photos has no JPEG', f'{tmp_path}/photos/*/')


def test_mistakes_in_files_for_predict_are_reported_in_one_line(fails, exported, tmp_path):
    image = write_image(tmp_path / 'image.png')
    (tmp_path / 'noise.jpg').write_bytes(b'\xff\xd8 no image')
    fails(['predict', tmp_path / 'none', image], 'none-symbol.json')
    fails(['predict', exported, tmp_path / 'none.png'], f'error: {tmp_path}/none.png: No such file or directory')
    fails(['predict', exported, tmp_path / 'noise.jpg'], 'noise.jpg', 'cannot be decoded as an image')
    fails(['predict', exported, image, '--epoch', '7'], 'net-0007.params')
    fails(['predict', exported, image, '--top', '-1'], '--top')
    fails(['predict', exported, image, '--mean', '1,2'], 'mean', '3 channels')
    describe(exported, input={'size': 24})
    fails(['predict', exported, image], 'net-summary.json', 'fields')
    describe(exported, class_names='cat')
    fails(['predict', exported, image], 'net-summary.json', 'class_names')
    describe(exported)

    parameters = mx.nd.load(f'{exported}-0000.params')
    name = next(name for name, array in parameters.items() if array.shape == (8, 3, 3, 3))
    for changed, words in (
        ({key: value for key, value in parameters.items() if key != name}, ['it lacks', name[4:]]),
        ({**parameters, name: mx.nd.zeros((8, 1, 3, 3))}, [name[4:], '(8, 1, 3, 3)', '(8, 3, 3, 3)']),
        ({**parameters, 'arg:stranger': mx.nd.zeros(1)}, ['stranger', 'unknown']),
        ({**parameters, name: mx.nd.full((8, 3, 3, 3), np.nan)}, ['not finite', 'image.png']),
        (list(parameters.values()), ['without names']),
    ):
        mx.nd.save(f'{exported}-0000.params', changed)
        fails(['predict', exported, image], *words)
    (tmp_path / 'net-0000.params').write_bytes(b'no parameters at all')
    fails(['predict', exported, image], 'net-0000.params', 'damaged')
    (tmp_path / 'net-symbol.json').write_text('{}')
    fails(['predict', exported, image], 'net-symbol.json')


# --- info, help and the process -------------------------------------------------------------------------------------------------------


def test_info_tells_versions_features_processor_and_networks(run):
    status, output, _ = run('info', '--json')
    facts = json.loads(output)
    assert status == 0 and facts['versions']['mxnet'] == mx.__version__ and facts['versions']['numpy'] == np.__version__
    assert facts['mxnet_features']['OPENMP'] == mx.runtime.Features().is_enabled('OPENMP')
    assert facts['cpu']['usable_cores'] >= 1 and set(facts['networks']) == set(model_zoo.get_model_list())
    _, output, _ = run('info')
    assert mx.__version__ in output and facts['cpu']['model'] in output and 'meliusnet22' in output


@pytest.mark.parametrize('arguments', [[], ['summary'], ['predict'], ['evaluate'], ['info']], ids=' '.join)
def test_help_teaches_by_examples(capsys, arguments, monkeypatch):
    monkeypatch.setenv('COLUMNS', '160')
    with pytest.raises(SystemExit) as left:
        main([*arguments, '--help'])
    output = capsys.readouterr().out
    assert left.value.code == 0 and ' '.join(['examples:\n  bmx-melius', *arguments]) in output


WRITTEN = {  # the arguments that name what a command writes
    'convert': ['prefix'],
    'evaluate': ['confusion', 'output'],
    'export-c': ['folder'],
    'export-onnx': ['model'],
    'import-bmxnet': ['prefix'],
    'import-larq': ['prefix'],
    'predict': ['csv'],
    'summary': ['plot'],
}


def help_of(*command, columns='160'):
    """What ``--help`` prints in a terminal of this width."""
    environment = unittest.mock.patch.dict(os.environ, COLUMNS=columns)
    with environment, contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(SystemExit):
        main([*command, '--help'])
    return output.getvalue()


def examples():
    """The examples of the help, of all commands: the words of each."""
    commands = re.findall(r'^    (\S+)', help_of().partition('COMMAND\n')[2], re.MULTILINE)
    assert set(WRITTEN) <= set(commands)
    helps = [help_of(), *map(help_of, commands)]
    lines = [line for help in helps for line in help.partition('examples:\n')[2].partition('\n\n')[0].splitlines()]
    assert len(lines) > 3 * len(commands) > 30
    return [shlex.split(line, comments=True) for line in lines]


def test_help_fits_a_narrow_terminal_with_comments_above_the_examples():
    wide, narrow = help_of('serve').splitlines(), help_of('serve', columns='80').splitlines()
    assert [line for line in narrow if len(line) > 80 and not line.startswith('  ')] == []
    assert '  bmx-melius serve digits cars=out/cars-packed              # two networks, called digits and cars' in wide
    at = narrow.index('  bmx-melius serve digits cars=out/cars-packed')
    assert narrow[at - 1] == '  # two networks, called digits and cars'
    # not between the lines of one command
    (first,) = (number for number, line in enumerate(narrow) if line.endswith('\\'))
    assert narrow[first - 1].startswith('  # arrays: ') and narrow[first + 1].strip() == 'localhost:8000/v2/models/best-packed/infer'
    # and nothing is lost
    assert sorted(' '.join(wide).split()) == sorted(' '.join(narrow).split())


@pytest.mark.parametrize('words', examples(), ids=' '.join)
def test_examples_of_the_help_can_be_parsed_and_write_to_no_folder_that_they_do_not_read(words):
    assert words[0] == 'bmx-melius'
    arguments = vars(build_parser().parse_args(words[1:]))
    if words[1] == 'convert':
        *arguments['files'], arguments['prefix'] = arguments['files']
    written = {name: arguments.pop(name) for name in WRITTEN.get(words[1], [])}
    values = [value for one in arguments.values() for value in (one if isinstance(one, list) else [one])]
    folders = {os.path.dirname(value) for value in values if isinstance(value, str)}
    assert {os.path.dirname(path) for path in written.values() if path} <= {'', *folders}


def test_parsing_arguments_waits_for_no_library_that_only_some_commands_need():
    program = (
        'import sys\n'
        'from bmx_melius.__main__ import build_parser\n'
        "build_parser().parse_args(['summary', 'meliusnet22'])\n"
        "print(*{'gluoncv', 'matplotlib', 'model_zoo', 'tqdm'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, check=True, text=True)
    assert done.stdout == '\n'


def test_output_of_libraries_does_not_reach_standard_output(capsys, monkeypatch):
    def chatty(*args, **kwargs):
        print('WARNING: a library talks')
        return nn.Conv2D(1, 3)

    monkeypatch.setattr('model_zoo.get_model', chatty)
    assert main(['summary', 'meliusnet22', '--json']) == 0
    output, errors = capsys.readouterr()
    assert json.loads(output)['flops'] == 222 * 222 * 27 and 'a library talks' in errors


NO_UTF8 = os.fsdecode(b'n\xff')


def test_names_that_are_no_utf8_are_printed(run, fails, exported, tmp_path):
    fails(['summary', NO_UTF8], 'n\\udcff')
    fails([NO_UTF8], 'n\\udcff')
    status, _, errors = run('summary', exported, '--plot', tmp_path / f'{NO_UTF8}.gv')
    assert status == 0 and f'drawing written to {tmp_path}/n\\udcff.gv' in errors and (tmp_path / f'{NO_UTF8}.gv').exists()
    image = write_image(tmp_path / 'image.png').rename(tmp_path / f'{NO_UTF8}.png')
    status, output, _ = run('predict', exported, image)
    assert status == 0 and output.startswith(f'{tmp_path}/n\\udcff.png\n')


def test_a_terminal_that_shows_only_ascii_is_no_error(monkeypatch):
    monkeypatch.setattr(tables, 'count', lambda name, **_: None)
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(io.BytesIO(), encoding='ascii'))
    assert main(['tables', '--table', '4']) == 0
    assert b'BOPs (10\\u2079)' in sys.stdout.buffer.getvalue()


def test_a_process_prints_one_json_object_and_leaves_with_the_status(tmp_path):
    done = subprocess.run([*COMMAND, 'summary', 'meliusnetA', '--json'], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)['flops'] == 86729216
    done = subprocess.run([*COMMAND, 'predict', tmp_path / 'none', 'image.png'], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == '' and done.stderr.splitlines()[-1].startswith('error: ')
    assert 'Traceback' not in done.stderr


@pytest.mark.skipif(not shutil.which('bash'), reason='needs bash')
def test_a_reader_that_stops_early_ends_the_program_quietly():
    script = f'{sys.executable} -m bmx_melius summary meliusnet59 | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(['bash', '-c', script], capture_output=True, text=True)
    first, status = done.stdout.splitlines()
    assert first.startswith('meliusnet59') and status in ('0', '141') and 'Traceback' not in done.stderr and 'BrokenPipe' not in done.stderr


def test_results_that_a_full_disk_does_not_take_end_in_one_line():
    if not os.path.exists('/dev/full'):
        pytest.skip('this system has no /dev/full')
    with open('/dev/full', 'w') as full:
        done = subprocess.run([*COMMAND, 'info', '--json'], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, 'error: the results cannot be written: No space left on device\n')


@pytest.mark.parametrize(
    'arguments, words',
    [
        (['summry', 'x'], ['did you mean summary?']),
        (['summary', 'meliusnet22', '--initial-layrs', 'imagenet'], ['--initial-layrs imagenet', 'did you mean --initial-layers?']),
        (['predict', 'net', 'image.png', '--jsn'], ['did you mean --json', 'see bmx-melius predict --help']),
        (['train', '--modle', 'meliusnet22'], ['error: unrecognized arguments: --modle meliusnet22; did you mean --mode or --model or ']),
        (['train', '--modle', 'meliusnet22'], ['--lr-mode?; see bmx-melius train --help']),
        (['train', '--model', 'meliusnet22', '--dataset', 'digit'], ['did you mean digits?']),
        (['train', '--model-options', '{bad}'], ['--model-options', 'expected a JSON object such as {"width": 32}', '{bad}']),
        (['train', '--lr-decay-epoch', '3,x'], ['--lr-decay-epoch', 'expected whole numbers separated by commas', '3,x']),
    ],
)
def test_mistyped_words_are_named_and_similar_ones_suggested(arguments, words, fails):
    fails(arguments, *words)


@pytest.mark.parametrize('value', ['abc', '0', ''])
def test_a_thread_count_that_is_not_a_number_is_ignored_with_a_warning(value):
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', 'import bmx_melius'],
        env={**os.environ, 'OMP_NUM_THREADS': value},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0 and f'OMP_NUM_THREADS={value} is ignored' in done.stderr and len(done.stderr.splitlines()) == 1
