"""The command-line classifier in C++, bmx-classify: the pixels and classes of `Session.classify`. `make test-c` runs these tests."""

import json
import os
import re
import resource
import shutil
import struct
import subprocess
import zlib

import cv2
import mxnet as mx
import numpy as np
import PIL.Image
import pytest
from mxnet.gluon import nn
from support.c_library import ROOT, call, install, only_test_c
from support.hostile_images import png, with_scans
from support.images import turned
from support.packed import make_program, write_packed

import bmx_melius as bmx
from bmx_melius.vision import pixels

pytestmark = only_test_c

NAMES = ['ant', 'bee', 'cät', 'dog', 'elk']
SPEC = bmx.InputSpec(size=24, resize=27, mean=(120, 110.3, 100), std=(60, 50, 40.7))
GRAY = bmx.InputSpec(channels=1, size=24, resize=24, mean=(7.1,), std=(3.3,))
SPECS = [
    SPEC,
    bmx.InputSpec(size=32, resize=None),
    bmx.InputSpec(size=20, resize=40),
    bmx.InputSpec(size=200, resize=203),
    GRAY,
    bmx.InputSpec(channels=1, size=31, resize=None, mean=(0,), std=(255,)),
]


@pytest.fixture(scope='module')
def program(tmp_path_factory):
    """Path of the installed bmx-classify."""
    return install(tmp_path_factory.mktemp('c')) / 'bin' / 'bmx-classify'


def texture(height, width, channels):
    random = np.random.RandomState(height)
    scales = [random.randint(0, 256, (max(1, height // scale), max(1, width // scale), channels)) for scale in (1, 3, 20)]
    return np.mean([cv2.resize(one.astype(np.uint8), (width, height)) for one in scales], axis=0).astype(np.uint8)


ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))  # first row, column; steps


def interlaced(image):
    """Return an interlaced PNG file (bytes) of RGB pixels, which Pillow and OpenCV cannot write."""

    def chunk(kind, content):
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))

    passes = (image[row::row_step, column::column_step] for row, column, row_step, column_step in ADAM7)
    rows = b''.join(b'\0' + row.tobytes() for part in passes for row in part)
    header = struct.pack('>IIBBBBB', image.shape[1], image.shape[0], 8, 2, 0, 0, 1)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Paths of JPEG and PNG files of all kinds."""
    folder = tmp_path_factory.mktemp('images')

    def save(name, image, **options):
        image.save(folder / name, **options)

    for height, width in ((48, 64), (33, 51), (80, 40), (24, 24), (300, 407), (1, 9)):
        colours = PIL.Image.fromarray(texture(height, width, 3))
        save(f'colours{height}.png', colours)
        for subsampling in range(3):
            save(f'colours{height}-{subsampling}.jpg', colours, quality=60 + 15 * subsampling, subsampling=subsampling)
    save('progressive.jpg', colours, progressive=True)
    colours = PIL.Image.fromarray(texture(41, 67, 3))
    for mode in ('L', 'CMYK', 'RGB'):
        save(f'{mode}.jpg', colours.convert(mode))
    for mode in ('1', 'L', 'LA', 'P', 'RGBA'):
        save(f'{mode}.png', colours.convert(mode))
    save('palette4.png', colours.quantize(13), bits=4)
    save('transparent.png', colours.quantize(60), transparency=5)
    save('transparent-gray.png', colours.convert('L'), transparency=9)
    cv2.imwrite(str(folder / 'deep.png'), texture(41, 67, 3).astype(np.uint16) * 257 + 130)
    cv2.imwrite(str(folder / 'deep-gray.png'), texture(41, 67, 3)[..., 0].astype(np.uint16) * 256 + 200)
    (folder / 'interlaced.png').write_bytes(interlaced(texture(41, 67, 3)))
    for orientation in range(1, 9):
        exif = PIL.Image.Exif()
        exif[0x112] = orientation
        save(f'exif{orientation}.jpg', colours, exif=exif)  # after a JFIF header, where OpenCV does not look
        content = (folder / f'exif{orientation}.jpg').read_bytes()
        (folder / f'turned{orientation}.jpg').write_bytes(content[:2] + content[20:])  # without that header
    assert pixels.decode((folder / 'turned6.jpg').read_bytes(), 'turned', 3).shape == (67, 41, 3)
    (folder / 'turned.jpg').write_bytes(turned((folder / 'RGB.jpg').read_bytes()))
    return sorted(folder.iterdir())


@pytest.fixture(scope='module')
def packed(tmp_path_factory, images):
    """Prefix of a small classifier, converted with its description. Its classes are about equally probable in the images."""
    folder = tmp_path_factory.mktemp('packed')
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(32, 3), nn.BatchNorm(), bmx.BinaryConv2D(64, kernel_size=3, padding=1), nn.BatchNorm())
    net.add(nn.GlobalAvgPool2D(), nn.Dense(len(NAMES)))
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    net(mx.nd.zeros((1, *SPEC.shape)))
    net[-1].bias.set_data(-mx.nd.concat(*(net(SPEC.load(path)) for path in images), dim=0).mean(axis=0))
    net.export(str(folder / 'net'))
    files = (folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed')
    bmx.convert(*files, (1, *SPEC.shape), input_spec=SPEC, class_names=NAMES)
    return folder / 'packed'


def classify(program, *arguments):
    return json.loads(call(program, '--json', *arguments))['predictions']


def test_classes_and_probabilities_are_those_of_a_session(program, packed, images):
    session = bmx.Session(packed)
    found = classify(program, '--top', len(NAMES), packed, *images)
    assert [row['image'] for row in found] == list(map(str, images))
    for path, row in zip(images, found):
        expected = session.classify(path)
        assert [(one['name'], NAMES[one['class']]) for one in row['top']] == [(name, name) for name, _ in expected]
        np.testing.assert_allclose([one['probability'] for one in row['top']], [probability for _, probability in expected], rtol=1e-12)
    assert len({row['top'][0]['name'] for row in found}) > 1  # the images are not all of one class


@pytest.mark.parametrize('spec', SPECS, ids=lambda spec: f'{spec.channels}x{spec.size}-{spec.resize}')
def test_the_input_is_that_of_the_session_bit_for_bit(program, images, tmp_path, spec):
    write_packed(tmp_path / 'net', make_program(channels=spec.channels), [0])
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': spec.to_json(), 'class_names': None}))
    different = []
    for path in images:
        call(program, '--save-input', tmp_path / 'input.bin', tmp_path / 'net', path)
        if (tmp_path / 'input.bin').read_bytes() != spec.array(path).tobytes():
            difference = np.abs(np.fromfile(tmp_path / 'input.bin', np.float32) - spec.array(path).ravel()).max()
            different.append((path.name, difference * max(spec.std)))
    assert different == []


def test_the_output_of_the_symbol_is_used(program, images, tmp_path):
    """Programs may compute more outputs than the network has; here the second one has the scores."""
    made = make_program(channels=3)
    made.outputs.reverse()
    write_packed(tmp_path / 'net', made, [1])
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': SPEC.to_json()}))
    (row,) = classify(program, '--top', 2, '--threads', 1, tmp_path / 'net-symbol.json', images[0])
    assert [(str(one['class']), one['name']) for one in row['top']] == [
        (name, None) for name, _ in bmx.Session(tmp_path / 'net').classify(images[0], top=2)
    ]


def test_the_text_is_that_of_bmx_melius_predict(program, packed, images, run):
    status, expected, _ = run('predict', packed, *images[:3])
    assert status == 0 and call(program, packed, *images[:3]) == expected


def failure(program, *arguments):
    """Return the message of a call that must fail with one line."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith('error: ') and done.stderr.count('\n') == 1, done
    return done.stderr


def test_an_image_that_cannot_be_read_does_not_prevent_the_others(program, packed, images, tmp_path):
    good = next(path for path in images if path.name == 'RGB.jpg')
    for source in (good, good.with_name('L.png')):
        (tmp_path / source.name).write_bytes(source.read_bytes()[:-200])
    (tmp_path / 'text.jpg').write_text('no image')
    for path, message in [
        (tmp_path / 'RGB.jpg', 'cannot be decoded as an image: Premature end'),
        (tmp_path / 'L.png', 'cannot be decoded as an image: the file is truncated'),
        (tmp_path / 'text.jpg', 'is not a JPEG or PNG file'),
        (tmp_path / 'none.png', 'none.png: cannot read it: No such file'),
        (tmp_path, 'cannot read it: Is a directory'),
    ]:
        assert message in failure(program, packed, path)
        done = subprocess.run([program, packed, path, good], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert done.returncode == 1 and done.stdout == call(program, packed, good)


def test_a_full_disk_is_reported(program, packed, images):
    with open('/dev/full', 'w') as full:
        done = subprocess.run([program, packed, images[0]], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and 'cannot be written to standard output: No space left' in done.stderr


@pytest.mark.parametrize(
    'change,message',
    [
        ({'input': None}, 'has no description of the preprocessing'),
        ({'input': {**SPEC.to_json(), 'resize': 3}}, 'resize must be at least the input size'),
        ({'input': {**SPEC.to_json(), 'size': 8193, 'resize': None}}, 'the input size must be 1 to 8192, not 8193'),
        ({'input': {**SPEC.to_json(), 'resize': 16385}}, 'at most 16384, not 16385'),
        ({'input': {**SPEC.to_json(), 'std': [1, 0, 1]}}, 'std must consist of positive numbers'),
        ({'input': {**SPEC.to_json(), 'mean': [1]}}, 'mean needs one value for each of the 3 channels'),
        ({'input': {**SPEC.to_json(), 'size': 'large'}}, 'the description is damaged'),
        ({'input': GRAY.to_json()}, 'must have the shape (batch, 3, height, width), not (1, 1, 24, 24)'),
        ({'class_names': NAMES}, 'net-summary.json names 5 classes, but the network has 7'),
    ],
)
def test_a_wrong_description_is_refused(program, images, tmp_path, change, message):
    write_packed(tmp_path / 'net', make_program(channels=3), [0])
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': SPEC.to_json(), **change}))
    assert message in failure(program, tmp_path / 'net', images[0])


def test_an_image_of_too_many_pixels_is_refused_by_its_header(program, packed, tmp_path):
    header = b'IHDR' + struct.pack('>IIBBBBB', 1 << 14, (1 << 13) + 1, 1, 0, 0, 0, 0)
    chunk = struct.pack('>I', len(header) - 4) + header + struct.pack('>I', zlib.crc32(header))
    (tmp_path / 'large.png').write_bytes(
        b'\x89PNG\r\n\x1a\n' + chunk + struct.pack('>I', 0) + b'IDAT' + struct.pack('>I', zlib.crc32(b'IDAT'))
    )
    message = 'large.png cannot be decoded as an image: it has 8193 x 16384 pixels, more than 134217728'
    assert message in failure(program, packed, tmp_path / 'large.png')


def test_what_is_no_packed_classifier_is_refused(program, packed, images, tmp_path):
    write_packed(tmp_path / 'many', make_program(channels=3), [0, 1])
    write_packed(tmp_path / 'map', make_program(channels=3), [1])
    (tmp_path / 'map-summary.json').write_text(json.dumps({'input': SPEC.to_json()}))
    (tmp_path / 'damaged-symbol.json').write_text('{"nodes": 3')
    for name, message in [
        ('many', 'many-symbol.json is not a classifier in one packed operator: it has 1 operators and 2 outputs'),
        ('map', 'map is not a classifier: its output has'),
        ('damaged', 'damaged-symbol.json: the symbol is damaged'),
        ('none', 'none-symbol.json: cannot read it'),
    ]:
        assert message in failure(program, tmp_path / name, images[0])
    assert 'net-symbol.json is not a classifier in one packed operator' in failure(program, packed.with_name('net'), images[0])


def test_options_may_have_their_value_after_an_equals_sign_and_top_may_be_more_than_there_are(program, packed, images):
    for separate, joined in ((['--top', 2], ['--top=2']), (['--top', len(NAMES)], ['--top=999999', '--threads=1'])):
        assert call(program, *separate, packed, images[0]) == call(program, *joined, packed, images[0])


def test_names_of_images_may_have_any_characters(program, packed, images, tmp_path):
    content = images[0].read_bytes()
    expected = classify(program, packed, images[0])[0]['top']
    for name in (b'gr\xc3\xb6\xc3\x9fe \xe6\x97\xa5\xe6\x9c\xac.png', b'not utf-8 \xff\xfe', b'--top=1', b'a=b.gif', b'"\\\n'):
        path = os.path.join(os.fsencode(tmp_path), name)
        with open(path, 'wb') as file:
            file.write(content)
        printed = subprocess.run([program, '--json', packed, '--', name], stdout=subprocess.PIPE, cwd=tmp_path, check=True).stdout
        (found,) = json.loads(printed)['predictions']
        assert found['image'] == name.decode(errors='replace') and found['top'] == expected


def test_jpeg_files_that_cannot_be_decoded_are_refused(program, packed, images, tmp_path):
    content = next(path for path in images if path.name == 'RGB.jpg').read_bytes()
    frame = content.index(b'\xff\xc0') + 4  # precision, height and width of 2 bytes each, components
    for change, message in [
        ((0, b'\x0c'), 'Unsupported JPEG data precision 12'),
        ((1, b'\xff\xff\xff\xff'), 'Maximum supported image dimension'),
        ((1, b'\xf0\x00\xf0\x00'), 'it has 61440 x 61440 pixels, more than 134217728'),
        ((1, b'\0\0'), 'Empty JPEG image'),
        ((5, b'\x02'), 'Bogus marker length'),
    ]:
        place, values = change
        damaged = content[: frame + place] + values + content[frame + place + len(values) :]
        (tmp_path / 'damaged.jpg').write_bytes(damaged)
        assert f'damaged.jpg cannot be decoded as an image: {message}' in failure(program, packed, tmp_path / 'damaged.jpg')
    for size in (0, 2, 3, 20, frame, frame + 30):
        (tmp_path / 'short.jpg').write_bytes(content[:size])
        assert 'short.jpg' in failure(program, packed, tmp_path / 'short.jpg')


def test_memory_and_scans_are_limited_and_other_images_are_classified(program, packed, images, tmp_path):
    text = b'zTXt', b'a\0\0' + zlib.compress(bytes(7_900_000), 9)
    (tmp_path / 'texts.png').write_bytes(png(8, 8, 8, 2, before=[text] * 300))  # 2.4 GB
    (tmp_path / 'scans.jpg').write_bytes(with_scans(33))
    (tmp_path / 'huge.png').write_bytes(png(8, 8, 8, 2).replace(struct.pack('>II', 8, 8), struct.pack('>II', 1 << 17, 1 << 17), 1))
    with open(tmp_path / 'sparse.png', 'wb') as file:
        file.write(b'\x89PNG\r\n\x1a\n')
        file.truncate((1 << 31) + 1)
    paths = [tmp_path / name for name in ('texts.png', 'scans.jpg', 'huge.png', 'sparse.png')]
    done = subprocess.run(
        [program, '--json', packed, *paths[:3], images[0]],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)),
    )
    assert [row['image'] for row in json.loads(done.stdout)['predictions']] == [str(paths[0]), str(images[0])] and done.returncode == 1
    assert 'scans.jpg cannot be decoded as an image: it has more than 32 scans' in done.stderr and 'huge.png cannot be' in done.stderr
    assert 'sparse.png has more than 2147483648 bytes' in failure(program, packed, paths[3])


def test_wrong_options_are_refused(program, packed, images, tmp_path):
    for arguments, message in [
        ([packed], 'give the PREFIX of a packed network and at least one image'),
        (['--top', '0', packed, images[0]], "--top must be a whole number from 1 to 1073741824, not '0'"),
        (['--threads', '2x', packed, images[0]], "not '2x'"),
        ([packed, images[0], '--top'], '--top needs a value'),
        (['--top=0', packed, images[0]], "--top must be a whole number from 1 to 1073741824, not '0'"),
        (['--top', '9' * 30, packed, images[0]], '--top must be a whole number'),
        (['--wrong', packed, images[0]], 'unknown option --wrong'),
        (['--json=1', packed, images[0]], '--json takes no value'),
        (['--wrong=1', packed, images[0]], 'unknown option --wrong'),
        (['--save-input=', packed, images[0]], '--save-input needs the name of a file'),
        (['--save-input', tmp_path / 'x', packed, *images[:2]], 'single image'),
        (['--save-input', tmp_path / 'none' / 'x', packed, images[0]], 'cannot write it: No such file'),
    ]:
        assert message in failure(program, *arguments)
    assert os.listdir(tmp_path) == [] and 'usage: bmx-classify' in call(program, '--help')
    assert call(program, '--version').startswith(f'bmx-classify {bmx.__version__} (reference')


def test_the_commands_of_the_guide_work_as_they_are_written(program, packed, images, tmp_path):
    """In the folder of the project, and then in one with the files; the installation goes to a folder in PATH other than /usr/local."""
    guide = (ROOT / 'docs' / 'deploying.md').read_text()
    lines = re.search(r'^\*\*`bmx-classify`\*\*.*?^```\n(.*?)^```$', guide, re.DOTALL | re.MULTILINE)[1].splitlines()
    commands = [line for line in lines if line and not line.startswith('#')]
    for suffix in ('-symbol.json', '-0000.params', '-summary.json'):
        if os.path.exists(f'{packed}{suffix}'):
            shutil.copy(f'{packed}{suffix}', tmp_path / f'packed{suffix}')
    shutil.copy(next(path for path in images if path.suffix == '.jpg'), tmp_path / 'photo.jpg')
    path = f'{tmp_path}/local/bin:{os.environ["PATH"]}'
    printed = []
    for command in commands:
        folder = tmp_path if command.startswith('bmx-classify') else ROOT
        printed.append(call('bash', '-c', f'cd {folder} && {command.replace("/usr/local", f"{tmp_path}/local")}', PATH=path))
    assert 'usage: bmx-classify' in printed[1] and shutil.which('bmx-classify', path=path) == f'{tmp_path}/local/bin/bmx-classify'
    session = bmx.Session(packed)
    for output in printed[3:]:
        assert re.findall('|'.join(NAMES), output) == [name for name, _ in session.classify(tmp_path / 'photo.jpg')]
    assert (tmp_path / 'image.bin').read_bytes() == SPEC.array(tmp_path / 'photo.jpg').tobytes()
