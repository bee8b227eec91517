"""Weights that Larq Zoo published: their download, and training that starts from them or is taught by them."""

import hashlib
import http.server
import json
import pathlib
import shutil
import threading

import mxnet as mx
import numpy as np
import pytest
from support.images import make_folders
from support.keras_files import LARQ_FILE, meliusnet22_layers, write_keras

import model_zoo
import train_imagenet
from bmx_melius import InputSpec, UserError
from bmx_melius.training.initial_weights import load_initial_weights
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.teacher import TeacherOptions, load_teacher
from model_zoo import larq, store
from model_zoo.registry import get_pretrained_options

pytest.importorskip('h5py')


# --- the store ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch, meliusnet22_file):
    """A store with one row, of a file on this machine; call it to change the row."""

    def publish(**fields):
        row = dict(url=meliusnet22_file.as_uri(), sha256=hashlib.sha256(meliusnet22_file.read_bytes()).hexdigest())
        row = store.Weights('meliusnet22', 'larq', source='', licence='', top1=1, top5=2, **{**row, **fields})
        monkeypatch.setattr(store, 'WEIGHTS', [row])
        return row

    publish()
    return publish


def test_pretrained_network_is_downloaded_once_and_then_needs_no_network(published, tmp_path):
    root = tmp_path / 'new' / 'models'
    first = model_zoo.get_model('meliusnet22', pretrained='larq', root=str(root))
    assert [file.name for file in root.iterdir()] == [LARQ_FILE]
    published(url='file:///nowhere/meliusnet22_weights.h5')
    second = model_zoo.get_model('MeliusNet_22', pretrained='larq', root=str(root))
    x = mx.nd.random.normal(shape=(1, 3, 64, 64))
    np.testing.assert_array_equal(first(x).asnumpy(), second(x).asnumpy())


def test_a_file_with_another_checksum_is_never_used(published, tmp_path):
    row = published(sha256='0' * 64)
    with pytest.raises(UserError, match='has changed or is incomplete: its SHA-256 is .*, not 0000'):
        store.fetch(row, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / row.filename).write_text('something else')
    with pytest.raises(UserError, match='meliusnet22_weights.h5 is not file:.*remove it'):
        store.fetch(row, str(tmp_path))


@pytest.mark.parametrize('url', ['file:///nowhere/w.h5', 'http://127.0.0.1:9/w.h5'])
def test_without_network_one_error_says_where_to_put_the_file(url, published, tmp_path):
    with pytest.raises(UserError, match=f'cannot download {url} .*put it at {tmp_path}/w.h5'):
        store.fetch(published(url=url), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('length', ['abc', '-1', None])
def test_a_response_without_a_valid_length_is_read_to_the_end(length, published, tmp_path):
    content = b'weights'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            if length:
                self.send_header('Content-Length', length)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Print nothing."""

    with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        row = published(url=f'http://127.0.0.1:{server.server_port}/w.h5', sha256=hashlib.sha256(content).hexdigest())
        assert pathlib.Path(store.fetch(row, str(tmp_path))).read_bytes() == content


def test_a_folder_in_the_place_of_a_download_is_named(published, tmp_path):
    (tmp_path / 'w.h5').mkdir()
    with pytest.raises(UserError, match='w.h5 is a folder: remove it to download'):
        store.fetch(published(url='file:///nowhere/w.h5'), str(tmp_path))


def test_pretrained_networks_that_do_not_exist_are_named(published, tmp_path):
    for name in ('meliusnet59', 'mobilenet1.0', 'nonet'):
        with pytest.raises(UserError, match=f'Larq Zoo has no {name} '):
            model_zoo.get_model(name, pretrained='larq', root=str(tmp_path))
    assert list(tmp_path.iterdir()) == [], 'nothing was downloaded'
    with pytest.raises(UserError, match="pretrained='larq'"):
        model_zoo.get_model('meliusnet22', pretrained=True)


@pytest.mark.parametrize('options', [{'initial_layers': 'imagenet'}, {'stem_pool': 3}, {'conv_kwargs': {'pad_value': -1}}])
def test_an_argument_with_which_the_weights_were_not_trained_is_refused_before_they_are_fetched(published, options, tmp_path):
    (name,) = options
    with pytest.raises(UserError, match=f"the weights 'larq' of meliusnet22 need {name}="):
        model_zoo.get_model('meliusnet22', pretrained='larq', root=str(tmp_path), **options)
    assert list(tmp_path.iterdir()) == []


# --- training -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def file_of_three_classes(make_once):
    return (
        make_once('larq-of-three-classes', lambda folder: write_keras(folder / LARQ_FILE, list(meliusnet22_layers(classes=3)))) / LARQ_FILE
    )


@pytest.fixture
def of_three_classes(file_of_three_classes, published, monkeypatch, tmp_path):
    """Flags of a run that starts from published weights of a network of three classes; the folder of weights is new."""
    path = tmp_path / LARQ_FILE
    shutil.copy(file_of_three_classes, path)
    published(url=path.as_uri(), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv('HOME', str(tmp_path))
    make_folders(tmp_path / 'images')
    return [
        '--model',
        'meliusnet22',
        '--data-dir',
        f'{tmp_path}/images',
        '--save-dir',
        f'{tmp_path}/run',
        '--input-size',
        '32',
        '--batch-size',
        '10',
        '--num-epochs',
        '1',
        '-j',
        '1',
        '--lr',
        '0',
    ]


def make(arguments):
    """The network of the program's flags."""
    config = parse_options(arguments, model_zoo)
    model = model_arguments(config, 3, get_pretrained_options(config.model, config.use_pretrained))
    net = make_network(config, model_zoo.get_model, model, InputSpec(size=32, resize=32), [mx.cpu()])
    load_initial_weights(config, model_zoo.get_model, net, model)
    return net


def test_training_starts_from_published_weights(of_three_classes, tmp_path):
    net = make([*of_three_classes, '--use-pretrained', 'larq'])
    expected = model_zoo.from_larq('meliusnet22', tmp_path / LARQ_FILE)
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_array_equal(net(x).asnumpy(), expected(x).asnumpy())


def test_a_run_from_published_weights_ends_in_a_network_that_its_description_builds_and_resumes_without_them(of_three_classes, tmp_path):
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'larq']) == 0
    description = json.loads((tmp_path / 'run' / 'meliusnet22-summary.json').read_text())
    assert description['model'] == {'name': 'meliusnet22', 'classes': 3, **larq.NETWORKS['meliusnet22']}
    net = model_zoo.get_model(**description['model'])
    net.load_parameters(str(tmp_path / 'run' / 'epoch-0001.params'))
    prefix = f'{tmp_path}/run/meliusnet22'
    exported = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_array_equal(net(x).asnumpy(), exported(x).asnumpy())
    (tmp_path / '.mxnet' / 'models' / LARQ_FILE).unlink()
    (tmp_path / LARQ_FILE).unlink()
    assert train_imagenet.main(['--resume', '--save-dir', f'{tmp_path}/run']) == 0


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--initial-layers', 'imagenet'], "need initial_layers='grouped_stem', not 'imagenet'"),
        (['--model-options', '{"stem_pool": 3}'], 'need stem_pool=2, not 3'),
        (['--model', 'meliusnet29'], 'Larq Zoo has no meliusnet29'),
        (['--resume-params', 'x.params'], '--resume-params'),
    ],
)
def test_flags_that_contradict_published_weights_are_one_error(of_three_classes, flags, words, capsys):
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'larq', *flags]) == 2
    assert words in capsys.readouterr().err
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'lark']) == 2
    assert "'lark' (choose from 'larq')" in capsys.readouterr().err


def test_a_published_network_teaches(of_three_classes, tmp_path):
    teacher = load_teacher(model_zoo.get_model, TeacherOptions('meliusnet22', teacher_pretrained='larq'), 3, (3, 32, 32), [mx.cpu()])
    expected = model_zoo.from_larq('meliusnet22', tmp_path / LARQ_FILE)
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_allclose(teacher(x).asnumpy(), expected(x).asnumpy(), rtol=1e-5, atol=1e-5)
