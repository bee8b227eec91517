"""The service over HTTP: its answers equal `Session`'s, and what it cannot answer is refused clearly."""

import base64
import concurrent.futures
import hashlib
import io
import itertools
import json
import re
import struct
import zlib

import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile_images import huge_webp
from support.packed import make_image
from support.paths import ROOT
from support.services import NAMES, expected, form, infer, listen, running, shown

from bmx_melius import InputSpec, Session, UserError
from bmx_melius.limited_process import LENGTHS
from bmx_melius.serving.limits import Refusal
from bmx_melius.serving.network import ServedNetwork
from bmx_melius.serving.reading import respond

pytest_plugins = ['support.services']  # its fixtures


# --- answers --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name,prefix', [('colour', 'colour'), ('second', 'gray')])
def test_an_image_gets_the_classes_of_the_session_as_a_body_and_as_a_form(client, folder, uploads, name, prefix):
    session = Session(folder / prefix)
    for path in uploads[:4]:
        content = path.read_bytes()
        for body, headers in ((content, {}), (content, {'Content-Type': 'image/jpeg'}), form(content)):
            status, answer, _ = client.post(f'/v1/classify?model={name}', body, headers)
            assert status == 200 and answer['model'] == name
            assert shown(answer) == expected(session, path)
            assert [NAMES[row['class']] for row in answer['top']] == [row['name'] for row in answer['top']]
    assert shown(client.post(f'/v1/classify?model={name}&top=2', content)[1]) == expected(session, path, top=2)


def test_simultaneous_requests_get_the_answers_to_their_own_images(client, folder, uploads):
    session = Session(folder / 'colour')
    before = client.metric('bmx_melius_batch_images_sum', model='colour') or 0
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda path: client.post('/v1/classify?model=colour', path.read_bytes()), uploads * 4))
    for path, (status, answer, _) in zip(uploads * 4, answers):
        assert status == 200 and shown(answer) == expected(session, path)
    assert client.metric('bmx_melius_batch_images_sum', model='colour') - before == len(answers)


def test_images_that_wait_are_computed_as_one_batch(folder, uploads, held):
    session = Session(folder / 'colour')
    with running([held], max_batch=4) as client:
        first = client.start('/v1/classify', uploads[0].read_bytes())
        assert held.began.acquire(timeout=60)
        others = [client.start('/v1/classify', path.read_bytes()) for path in uploads[1:4]]
        client.wait_for(3, 'bmx_melius_images_waiting')
        held.go.set()
        for path, finish in zip(uploads, [first, *others]):
            status, answer, _ = finish()
            assert status == 200 and shown(answer) == expected(session, path)
        assert client.metric('bmx_melius_batch_images_count', model='held') == 2
        assert client.metric('bmx_melius_batch_images_sum', model='held') == 4
        assert client.metric('bmx_melius_requests_total', endpoint='classify', model='held', status='200') == 4
        assert client.metric('bmx_melius_request_seconds_count', endpoint='classify', model='held') == 4


def test_arrays_get_the_outputs_of_the_session_bit_for_bit(client, folder):
    x = make_image(batch=3)
    scores, pooled = (output.tobytes() for output in Session(folder / 'arrays')(x)[::-1])
    request = {'id': 'one', 'inputs': [{'name': 'data0', 'datatype': 'FP32', 'shape': list(x.shape), 'data': x.ravel().tolist()}]}
    status, answer, headers = client.post('/v2/models/arrays/infer', json.dumps(request))
    assert (status, answer['model_name'], answer['id']) == (200, 'arrays', 'one')
    assert [output['name'] for output in answer['outputs']] == ['output0', 'output1']
    assert [np.float32(output['data']).tobytes() for output in answer['outputs']] == [pooled, scores]

    head = {'name': 'data0', 'datatype': 'FP32', 'shape': list(x.shape), 'parameters': {'binary_data_size': x.nbytes}}
    text = json.dumps({'inputs': [head], 'outputs': [{'name': 'output1', 'parameters': {'binary_data': True}}]}).encode()
    lengths = {'Inference-Header-Content-Length': str(len(text)), 'Content-Type': 'application/octet-stream'}
    status, content, headers = client.post('/v2/models/arrays/infer', text + x.tobytes(), lengths)
    length = int(headers['Inference-Header-Content-Length'])
    assert status == 200 and content[length:] == scores
    assert json.loads(content[:length])['outputs'][0]['shape'] == [3, 7]


def test_the_example_of_the_documentation_gets_the_logits_of_the_session(folder):
    (code,) = re.findall('^```python\n(.*?)^```$', (ROOT / 'docs' / 'serving.md').read_text(), re.MULTILINE | re.DOTALL)
    with running([ServedNetwork('best-packed', f'{folder}/colour')]) as client:
        names = {}
        exec(code.replace(':8000/', f':{client.port}/').replace("'name': 'data'", "'name': 'data0'"), names)
    assert names['logits'].tobytes() == Session(folder / 'colour')(names['x']).tobytes()


def test_the_service_describes_itself_and_its_networks(client):
    assert client.get('/v2')[1]['extensions'] == ['binary_tensor_data']
    able = {'colour': True, 'second': True, 'arrays': False}
    assert {row['name']: row['classifies_images'] for row in client.get('/v2/models')[1]['models']} == able
    described = client.get('/v2/models/arrays')[1]
    assert described['inputs'] == [{'name': 'data0', 'datatype': 'FP32', 'shape': [-1, 5, 8, 6]}]
    assert [(output['name'], output['shape']) for output in described['outputs']] == [('output0', [-1, 40, 4, 3]), ('output1', [-1, 7])]
    for path in ('/healthz', '/readyz', '/v2/health/live', '/v2/health/ready', '/v2/models/colour/ready'):
        assert client.get(path)[0] == 200


# --- refusals -------------------------------------------------------------------------------------------------------------------------


def jpeg(height=20, width=30, **options):
    file = io.BytesIO()
    PIL.Image.fromarray(np.random.RandomState(0).randint(0, 256, (height, width, 3)).astype(np.uint8)).save(
        file, **{'format': 'JPEG', **options}
    )
    return file.getvalue()


def huge_png(width, height):
    """Return a PNG file of some bytes whose header announces an image of any size."""

    def chunk(kind, content):
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))

    header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(b'\0' * 100)) + chunk(b'IEND', b'')


FORM = {'Content-Type': 'multipart/form-data; boundary=x'}
FIELD = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n1\r\n'
COLOUR = '/v1/classify?model=colour'
ARRAYS = '/v2/models/arrays/infer'


@pytest.mark.parametrize(
    'path,body,status,message',
    [
        ('/v1/classify', jpeg(), 400, 'choose one with ?model=NAME, of colour, second, arrays'),
        ('/v1/classify?model=other', jpeg(), 404, "no network 'other', only colour, second, arrays"),
        ('/v1/classify?model=arrays', jpeg(), 422, 'do not describe the preprocessing of images'),
        (f'{COLOUR}&top=0', jpeg(), 400, "top must be a whole number from 1 to 1000, not '0'"),
        (f'{COLOUR}&top=x', jpeg(), 400, "not 'x'"),
        (COLOUR, b'', 400, 'the request is empty'),
        (COLOUR, b'GIF89a' + bytes(50), 422, 'image'),
        (COLOUR, jpeg(format='JPEG2000'), 415, 'the upload is not a JPEG, PNG'),
        (COLOUR, jpeg(90, 90)[:-300], 422, 'cannot be decoded'),
        (COLOUR, b'\xff\xd8\xff' + bytes(50), 422, 'damaged'),
        (COLOUR, b'\x89PNG\r\n\x1a\n', 422, 'damaged'),
        (COLOUR, huge_png(30, 30), 422, 'cannot be decoded'),
        (COLOUR, jpeg(101, 100), 413, '100 x 101 pixels; at most 10,000'),
        (COLOUR, huge_webp(), 413, 'more than the 10,000 pixels that are allowed'),
        (COLOUR, huge_png(50_000, 50_000), 413, 'more than the 10,000 pixels that are allowed'),
        (COLOUR, huge_png(2**31 - 1, 2**31 - 1), 413, 'more than the 10,000 pixels that are allowed'),
        (COLOUR, bytes(50_001), 413, 'larger than 50,000 bytes'),
        (ARRAYS, bytes(50_001), 413, 'larger than 50,000 bytes'),
        (ARRAYS, b'{', 400, 'not JSON'),
        (ARRAYS, infer([1, 5, 8, 6], 7), 400, 'has 7 numbers, but its shape is [1, 5, 8, 6]'),
        (ARRAYS, infer([1, 4, 8, 6]), 400, 'must have the shape'),
        (ARRAYS, infer([240]), 400, 'must have the shape'),
        (ARRAYS, infer([5, 5, 8, 6]), 400, 'a batch of 5 is more than the 4'),
        (ARRAYS, infer([1, 5, 8, 6], datatype='INT8'), 400, 'must be FP32'),
        ('/v2/models/none/infer', infer([1]), 404, "no network 'none'"),
        ('/nothing', b'', 404, "nothing at '/nothing'"),
        ('/v2/models/%ff%0a/infer', b'', 404, 'there is no network'),
        ('/%ff%0a', b'', 404, 'there is nothing at'),
        ('/healthz', b'', 405, 'POST is not supported'),
    ],
    ids=itertools.count(),
)
def test_requests_that_cannot_be_answered_are_refused_with_one_line(client, monkeypatch, path, body, status, message):
    monkeypatch.setattr(PIL.ImageFile, 'LOAD_TRUNCATED_IMAGES', False)  # GluonCV sets it when another test imports it
    found, content, _ = client.post(path, body)
    assert found == status, content
    assert message in content['error'] and content['error'].isprintable()
    assert client.post(COLOUR, jpeg())[0] == 200  # the service goes on


def read_image(content):
    """Return the input of a network, read from an upload in this process; raise `Refusal` as the service does."""
    lengths, head, *body = respond({'spec': InputSpec(size=8, resize=9).to_json(), 'pixels': 10_000, 'form': None}, content)
    assert LENGTHS.unpack(lengths) == (len(head), sum(map(len, body)))
    found = json.loads(head)
    if 'refusal' in found:
        raise Refusal(*found['refusal'])
    (shape,) = found['shapes']
    return np.frombuffer(body[0], np.float32).reshape(shape)


@given(st.sampled_from(['JPEG', 'PNG']), st.integers(0, 40), st.lists(st.tuples(st.integers(3, 900), st.integers(0, 255)), max_size=8))
def test_damaged_images_are_decoded_or_refused(kind, missing, changes):
    content = bytearray(jpeg(format=kind))
    del content[len(content) - missing :]
    for position, value in changes:
        content[position % (len(content) - 3) + 3] = value
    try:
        image = read_image(bytes(content))
    except Refusal as refusal:
        assert refusal.status in (413, 415, 422) and str(refusal).isprintable()
    else:
        assert image.shape == (1, 3, 8, 8) and np.isfinite(image).all()


def test_inputs_with_different_batches_are_refused(folder):
    with pytest.raises(UserError, match='the same batch'):
        ServedNetwork('arrays', f'{folder}/arrays').check_shapes([(1, 5, 8, 6), (2, 5, 8, 6)])


def test_arrays_that_need_too_much_memory_are_refused(folder, monkeypatch):
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '100000')
    with running([ServedNetwork('arrays', f'{folder}/arrays')]) as client:
        status, content, _ = client.post(ARRAYS, infer([1, 5, 100, 100]))
        assert status == 400 and 'BMX_MELIUS_MEMORY_LIMIT' in content['error'] and '\n' not in content['error']
        assert client.post(ARRAYS, infer([1, 5, 8, 6]))[0] == 200


def test_a_body_without_a_length_is_read_up_to_the_limit(client):
    chunks = (bytes(1000) for _ in range(200))
    status, content, _ = client.post(COLOUR, chunks)  # chunked
    assert status == 413 and 'larger than 50,000 bytes' in content['error']


@pytest.mark.parametrize(
    'body,headers,message',
    [
        (form(b'')[0], form(b'')[1], 'the request is empty'),
        (FIELD + b'--x--\r\n', FORM, 'the form has 0 files'),
        (FILE + FILE + b'--x--\r\n', FORM, 'the form has too many parts'),
        (9 * FIELD + FILE + b'--x--\r\n', FORM, 'the form has too many parts'),
        (b'...', {'Content-Type': 'multipart/form-data'}, 'the form cannot be read'),
        (b'no form', FORM, 'the form cannot be read'),
    ],
)
def test_forms_without_an_image_are_refused(client, body, headers, message):
    status, content, _ = client.post(COLOUR, body, headers)
    assert status == 400 and message in content['error']


def test_outputs_for_an_image_that_are_not_finite_are_refused(folder, uploads):
    class Infinite(ServedNetwork):
        def run(self, *arrays):
            return [output + np.where(arrays[0].any(), np.inf, 0) for output in super().run(*arrays)]

    with running([Infinite('infinite', f'{folder}/colour')]) as client:
        status, content, _ = client.post('/v1/classify', uploads[0].read_bytes())
        assert status == 422 and 'values that are not finite for the upload' in content['error']


def test_a_defect_is_answered_without_its_details(folder, uploads, capsys):
    class Broken(ServedNetwork):
        def describe(self, outputs, top):
            raise ZeroDivisionError('a defect')

    with running([Broken('broken', f'{folder}/colour')]) as client:
        status, content, _ = client.post('/v1/classify', uploads[0].read_bytes())
        assert status == 500 and 'its log has the reason' in content['error'] and 'defect' not in content['error']
        assert client.metric('bmx_melius_requests_total', endpoint='classify', model='broken', status='500') == 1
    assert 'ZeroDivisionError: a defect' in capsys.readouterr().err


# --- the command --------------------------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named(run, folder):
    for arguments, message in [
        ([f'{folder}/none'], 'none-symbol.json'),
        ([f'{folder}/colour', f'{folder}/colour'], 'two networks are called colour'),
        ([f'a/b=c={folder}/colour'], 'symbol.json'),
        ([f'a b={folder}/colour'], "'a b' cannot be a part of a URL"),
        ([f'..={folder}/colour'], "'..' cannot be a part of a URL"),
        ([f'{folder}/colour', '--threads', '2000'], 'threads must be'),
        ([f'{folder}/colour', '--port', '70000'], 'expected a port'),
        ([f'{folder}/colour', '--max-megapixels', '90'], 'from 0.001 to 89'),
        ([f'{folder}/colour', '--max-delay-ms', '-1'], 'expected a number from 0'),
        ([f'{folder}/colour', '--queue', '0'], 'expected a positive whole number'),
    ]:
        status, output, errors = run('serve', *arguments)
        assert status == 2 and output == '' and message in errors and errors.count('\n') == 1, errors


def test_an_address_in_use_is_named(run, folder):
    with listen('127.0.0.1', 0) as listener:
        port = listener.getsockname()[1]
        status, _, errors = run('serve', folder / 'colour', '--port', port)
        assert status == 2 and errors.startswith(f'error: cannot listen on 127.0.0.1, port {port}: ')
    for host in ('nowhere.invalid', 'x' * 70):
        with pytest.raises(UserError, match=f'cannot listen on {host}, port 0: '):
            listen(host, 0)


# --- the page -------------------------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere_and_its_policy_allows_only_its_own_script_and_style(client):
    status, content, headers = client.get('/')
    page = content.decode()
    assert status == 200 and headers['Content-Type'].startswith('text/html')
    assert not re.search(r'(?:src|href)="(?:\w+:)?//', page) and '@import' not in page and 'url(' not in page
    policy = headers['Content-Security-Policy']
    assert "default-src 'none'" in policy and 'unsafe' not in policy
    for tag in ('script', 'style'):
        (source,) = re.findall(f'<{tag}>(.*?)</{tag}>', page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() in policy
