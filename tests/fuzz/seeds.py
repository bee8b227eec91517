"""The inputs with which fuzzing begins, made by the writers of this project and by MXNet: small files of every kind, all of them valid."""

import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import random
import struct
import tarfile
import tempfile

import numpy as np
from support.channel_images import CHANNELS, TIFF_FILES, npy
from support.hostile_images import animated_webp, empty_jpeg, gif, with_scans
from support.images import write_records
from support.large_programs import concatenations, sums
from support.packed import make_program, write_packed
from support.random_programs import Maker

from bmx_melius.data.record_format import MAGIC as RECORD_MAGIC
from bmx_melius.deployment.program.operations import BITS_KIND, OPERATIONS, REAL_KIND, Operation, Value, array_shapes
from bmx_melius.deployment.program.packed_operator import text_of
from bmx_melius.deployment.program.program import Program
from bmx_melius.files.exported import description_fields
from bmx_melius.files.parameters import write_parameters
from bmx_melius.vision.preprocessing import InputSpec

MAX_BYTES = 1 << 14  # of a program; small inputs are fuzzed at a higher rate
IMAGE_SHAPE = (1, 3, 16, 16)
CONVERTED_SHAPE = (2, 32, 6, 6)


def _contents(write, *names):
    """Return the contents of the files that `write` makes in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder))
        return [pathlib.Path(folder, name).read_bytes() for name in names]


# --- programs -------------------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def small_programs():
    """Return a program for each operation, random programs and a fixed one."""
    found, number = [make_program(channels=3, classes=4), *map(smallest_program, OPERATIONS)], 0
    while len(found) < 40 + len(OPERATIONS):
        number += 1
        program = Maker(random.Random(number), exact=number % 2 == 0).program(1 + number % 6)
        if program.operations and program.to_words().nbytes <= MAX_BYTES:
            found.append(program)
    return found


def smallest_program(name):
    """Return a program with an operation on values of 2 channels, if it takes such, whose attributes are as small as possible."""
    row = OPERATIONS[name]
    products = 'product', 'product_of_rows'
    size = 1 if row.shape in ('map', 'transposed', 'gathered', *products) else 3
    program = Program([Value(REAL_KIND, 1 if row.shape in (*products, 'looked_up') else 2, size, size, row.shape == 'map')], [], [])

    def add(name, inputs):
        attributes = {attribute: low for attribute, (low, _) in OPERATIONS[name].attributes.items()}
        operation = Operation(name, tuple(inputs), attributes)
        shapes = array_shapes(operation, program.values()[inputs[0]].channels)
        operation.arrays = {array: np.ones(shape, dtype) for array, (dtype, shape) in shapes.items()}
        program.operations.append(operation)

    if REAL_KIND not in row.kinds:
        add('threshold', [0])
    add(name, [len(program.operations)] * row.inputs[0])
    if (row.result or row.kinds[0]) == BITS_KIND:
        add('expand', [len(program.operations)])
    program.outputs.append(len(program.operations))
    return program


def _words():
    return [program.to_words() for program in small_programs()] + [sums(3, 4), concatenations(4, 2, 3)]


def programs():
    """Return words of programs, as bytes."""
    return [[words.tobytes()] for words in _words()]


def structures():
    """Return texts of structures."""
    return [[text_of(program.to_structure()).encode()] for program in small_programs()]


def parameter_files():
    """Return parameter files with packed programs and with other arrays."""

    def write(folder):
        for number, words in enumerate(_words()[:12]):
            write_parameters(folder / f'{number}', {'arg:net_program': words})
        arrays = {f'arg:{dtype}': np.ones((2, 3), dtype) for dtype in ('f4', 'f8', 'f2', 'u1', 'i4', 'i1', 'i8', '?')}
        write_parameters(folder / 'arrays', {**arrays, 'aux:mean': np.zeros(5, 'f')})

    return [[content] for content in _contents(write, *map(str, range(12)), 'arrays')]


def packed_files():
    """Return pairs of a symbol and a parameter file of packed networks; one has a description."""
    pairs = []
    for program in small_programs()[:12]:
        pairs.append(_contents(lambda folder, program=program: write_packed(folder / 'net', program), 'net-symbol.json', 'net-0000.params'))
    symbol = json.loads(pairs[0][0])
    symbol['attrs']['bmx_melius_description'] = ['str', json.dumps(_description())]
    return [*pairs, [json.dumps(symbol).encode(), pairs[0][1]]]


def _description():
    return {**description_fields({'name': 'meliusnet22', 'classes': 4}, InputSpec(size=4, resize=5), {}, list('abcd')), 'metrics': {}}


def descriptions():
    """Return descriptions of networks, and symbols of packed networks with and without them."""
    gray = description_fields({}, InputSpec(channels=1, size=8, resize=None, mean=(0,), std=(255,)), {}, ['ä', 'b\U0001f600', '"\\'])
    texts = [json.dumps(_description()), json.dumps(gray), json.dumps({'input': None}), json.dumps(gray, ensure_ascii=False)]
    return [[text.encode()] for text in texts] + [[symbol] for symbol, _ in (packed_files()[0], packed_files()[-1])]


# --- networks of MXNet ----------------------------------------------------------------------------------------------------------------


def symbols():
    """Return symbols of packed and of float networks."""
    return [[symbol] for symbol, _ in packed_files()] + float_symbols()


@functools.lru_cache(maxsize=1)
def float_symbols():
    """Return exported symbols of small networks with the layers of this project, and one with several outputs."""
    import mxnet as mx

    import bmx_melius as bmx

    net = mx.gluon.nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.BatchNorm(), bmx.BinaryConv2D(4, 3), mx.gluon.nn.MaxPool2D(), mx.gluon.nn.Dense(3))
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros(IMAGE_SHAPE))
    exported = _contents(lambda folder: net.export(str(folder / 'net')), 'net-symbol.json')
    x = mx.sym.var('data')
    return [[exported[0]], [mx.sym.Group([x.relu(), x.split(3, axis=1)[1]]).tojson().encode()]]


@functools.lru_cache(maxsize=1)
def small_meliusnet():
    """Return the network whose weights the importers load."""
    import mxnet as mx

    from model_zoo import get_model

    size = {'block_numbers': [1], 'transitions': [], 'growth_rate': 16, 'init_features': 16}
    net = get_model('meliusnet_flex', **size, classes=3, initial_layers='thumbnail', prefix='net_')
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros(IMAGE_SHAPE))
    return net


def bmxnet_checkpoints():
    """Return checkpoints in both forms of BMXNet-v2: exported, and with structural names."""
    net = small_meliusnet()

    def write(folder):
        net.export(str(folder / 'net'))
        net.save_parameters(str(folder / 'structural'))

    return [[content] for content in _contents(write, 'net-0000.params', 'structural')]


def converted_files():
    """Return pairs of files as the model_converter of BMXNet-v2 writes them."""
    import mxnet as mx
    from support import bmxnet_v2_converter as bmxnet

    def write(layers):
        def call(folder):
            net = mx.gluon.nn.HybridSequential(prefix='net_')
            with net.name_scope():
                net.add(*layers())
            bmxnet.randomize(net, mx.nd.ones(CONVERTED_SHAPE))
            net.export(str(folder / 'float'))
            bmxnet.convert(folder / 'float', folder / 'net')

        return _contents(call, 'net-symbol.json', 'net-0000.params')

    return [
        write(lambda: [bmxnet.Activation(), bmxnet.Convolution(4, 3, in_channels=32, padding=1), mx.gluon.nn.BatchNorm()]),
        write(lambda: [mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Flatten(), bmxnet.Activation(), bmxnet.Dense(3, in_units=32)]),
    ]


def keras_files():
    """Return HDF5 files of Keras: only weights, and a whole model; and a short one of Larq, with other names."""
    from support.keras_files import write_keras

    layers = [('conv', {'kernel': np.ones((3, 3, 3, 4), 'f')}), ('norm', {name: np.ones(4, 'f') for name in ('gamma', 'beta')})]
    layers.append(('dense', {'kernel': np.ones((4, 3), 'f'), 'bias': np.zeros(3, 'f')}))

    def write(folder):
        write_keras(folder / 'weights', layers)
        write_keras(folder / 'model', layers, root='model_weights')
        write_keras(folder / 'net', _keras_layers(small_meliusnet()))

    return [[content] for content in _contents(write, 'weights', 'model', 'net')]


def _keras_layers(net):
    """Return the layers of a network with weights as Keras names them; a grouped convolution is one layer for each group."""
    from model_zoo import larq

    layers = []
    for layer in larq._layers(net):
        kind = next(kind for block, kind in larq.KINDS.items() if isinstance(layer, block))
        arrays = {}
        for own, there in kind.names.items():
            parameter = layer._reg_params.get(own)
            if parameter is not None:
                array = parameter.data().asnumpy()
                arrays[there] = array.transpose(np.argsort(larq.AXES.get((there, array.ndim), range(array.ndim))))
        groups = layer._kwargs['num_group'] if hasattr(layer, '_kwargs') and 'num_group' in layer._kwargs else 1
        if groups == 1:
            layers.append((layer.name, arrays))
            continue
        for number, part in enumerate(np.split(arrays['kernel'], groups, axis=-1)):
            layers.append((f'{layer.name}_{number}', {'kernel': part}))
    return layers


# --- training -------------------------------------------------------------------------------------------------------------------------


def trained(optimizer='adam'):
    """Return a small network and its trainer after an update."""
    import mxnet as mx

    net = mx.gluon.nn.Dense(2, in_units=3, prefix='dense_')
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {'learning_rate': 0.01}, update_on_kvstore=False)
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 3))).sum()
    loss.backward()
    trainer.step(4)
    return net, trainer


def optimizer_states():
    """Return states of optimizers, in the format of this project and as MXNet pickles them."""
    from bmx_melius.training.saving.optimizer_state import save_optimizer

    def write(folder):
        for optimizer in ('adam', 'sgd', 'radam'):
            _, trainer = trained(optimizer)
            save_optimizer(trainer, str(folder / optimizer))
            trainer.save_states(str(folder / f'{optimizer}-pickle'))

    names = [f'{optimizer}{form}' for optimizer in ('adam', 'sgd', 'radam') for form in ('', '-pickle')]
    return [[content] for content in _contents(write, *names)]


CHECKPOINT_FILES = [f'epoch-0001-00000{batch}.{suffix}' for batch in (3, 2) for suffix in ('params', 'states', 'npz')]


def checkpoints():
    """Return descriptions of checkpoints, the last one and the one before, whose `CHECKPOINT_FILES` are empty."""
    from bmx_melius.training.progress import Progress
    from bmx_melius.training.saving.stored_checkpoints import FORMAT, write_state

    def write(folder):
        for name, batch in (('new', 3), ('old', 2)):
            progress = Progress(epoch=1, batch=batch, loss=0.3, correct=5, seen=18, history=[{'epoch': 1, 'top1': 0.3}])
            weights, states, arrays = (file for file in CHECKPOINT_FILES if f'00000{batch}.' in file)
            state = {
                'format': FORMAT,
                'options': {'model': 'test', 'lr': 0.01},
                'network': None,
                'weights': weights,
                'states': states,
                'arrays': arrays,
                'kept': ['epoch-0001.params'],
                'sha256': dict.fromkeys([*CHECKPOINT_FILES, 'epoch-0001.params'], hashlib.sha256().hexdigest()),
                'progress': dataclasses.asdict(progress),
            }
            write_state(str(folder / name), state)

    new, old = _contents(write, 'new', 'old')
    return [[new, old], [old, old], [old, new]]


# --- images ---------------------------------------------------------------------------------------------------------------------------


def images():
    """Return small images of every format that is read, in several modes."""
    import PIL.Image

    pixels = np.random.RandomState(0).randint(0, 256, (9, 11, 4)).astype(np.uint8)
    rows = [('JPEG', 'RGB'), ('JPEG', 'L'), ('JPEG', 'CMYK'), ('PNG', 'RGB'), ('PNG', 'RGBA'), ('PNG', 'L'), ('PNG', 'LA'), ('PNG', 'P')]
    rows += [('BMP', 'RGB'), ('GIF', 'P'), ('TIFF', 'RGB'), ('WEBP', 'RGB'), ('PPM', 'RGB'), ('PNG', '1'), ('PNG', 'I;16')]
    contents = []
    for kind, mode in rows:
        image = PIL.Image.fromarray(pixels)
        image = image.convert('I').convert('I;16') if mode == 'I;16' else image.convert('RGB' if mode == 'CMYK' else mode).convert(mode)
        with io.BytesIO() as file:
            image.save(file, kind)
            contents.append([file.getvalue()])
    arrays = pixels[..., :3], pixels[..., 0], pixels.repeat(2, axis=2)[..., :CHANNELS].astype(np.uint16)
    costly = [animated_webp(20, 10), empty_jpeg(40, 30), gif((5, 4), (0, 0, 1, 1))]
    return contents + [[npy(array)] for array in arrays] + [[path.read_bytes()] for path in TIFF_FILES] + [[file] for file in costly]


def record_files():
    """Return small record files with their indices; one has a record that is split, because its image contains the magic number."""
    import PIL.Image

    encoded, split = [], []
    for number, kind in enumerate(('JPEG', 'PNG', 'JPEG')):
        with io.BytesIO() as file:
            PIL.Image.fromarray(np.random.RandomState(number).randint(0, 256, (9, 11, 3)).astype(np.uint8)).save(file, kind)
            encoded.append(file.getvalue())
        comment = b'\xff\xfe' + struct.pack('>H', 14) + struct.pack('<I', RECORD_MAGIC) * 3
        split.append(encoded[-1][:2] + comment + encoded[-1][2:] if kind == 'JPEG' else encoded[-1])
    return [_records(images) for images in (encoded, split)]


def _records(images):
    """Return the contents of the record file and of the index that MXNet writes for images."""
    labels = [number % 2 for number in range(len(images))]
    return _contents(lambda folder: write_records(folder / 'images', images, labels), 'images.rec', 'images.idx')


def indexed_records():
    """Return the same files, and a record file with an empty index, which stands for none."""
    return [*record_files(), [record_files()[0][0], b'']]


def archives():
    """Return small tar archives in each format: long names, links, attributes, and names that are hidden or of no image."""
    return [
        [_archive(form, name)] for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT) for name in ('a', 'folder/' * 12)
    ]


def _archive(form, long):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w', format=form) as archive:
        for name, kind, target, content in (
            (f'{long}/a.png', tarfile.REGTYPE, '', b'content' * 100),
            ('folder', tarfile.DIRTYPE, '', b''),
            ('b.png', tarfile.LNKTYPE, f'{long}/a.png', b''),
            ('c.png', tarfile.SYMTYPE, 'b.png', b''),
            ('._d.png', tarfile.REGTYPE, '', b'hidden'),
            ('notes.txt', tarfile.REGTYPE, '', b'text'),
            ('é.png', tarfile.REGTYPE, '', b''),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, len(content)
            member.pax_headers = {'comment': 'text', 'SCHILY.xattr.user.a': 'é'}
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


WEIGHTS = 5  # of training images


def npy_files():
    """Return arrays: calibration images of every kind, more of them than a batch has, and weights of images."""
    random = np.random.RandomState(0)
    arrays = [random.randn(*shape).astype(np.float32) for shape in ((2, 3, 4, 5), (17, 1, 2, 2), (3, 7))]
    arrays += [np.asfortranarray(arrays[0]), random.randint(0, 256, (2, 3, 4, 5)).astype(np.uint8)]
    arrays += [np.arange(WEIGHTS), np.array(3.5), np.array(['abc', 'd']), np.ones((2, 3), bool)]
    return [[npy(array)] for array in arrays]


FORM = 'multipart/form-data; boundary=x'


def uploads():
    """Return requests of the service with images: the files, a form, and a JPEG file with 30 scans."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return [*images(), [head + with_scans(10) + b'\r\n--x--\r\n'], [with_scans(30)]]


def logged_uploads():
    """Return forms about which their parser writes to a log, one more than a form has bytes, and one about which it does not."""
    head, end = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n', with_scans(10) + b'\r\n--x--\r\n'
    encoding = b'Content-Transfer-Encoding: '
    return [[head + line + b'\r\n' + end] for line in (b'', encoding + b'7\r\n', encoding + b'\xff' * 3000 + b'\r\n')]


def requests():
    """Return requests of the service with arrays in JSON: flat, nested, and with the names of outputs."""
    a = {'name': 'a', 'datatype': 'FP32', 'shape': [2, 2], 'data': [1, 2.5, -3, 4e9]}
    b = {'name': 'b', 'datatype': 'FP32', 'shape': [2, 1, 2], 'data': [[[1, 2]], [[3, 4]]]}
    outputs = [{'name': 'y', 'parameters': {'binary_data': True}}, {'name': 'x'}]
    return [[json.dumps({'id': '1', 'inputs': [a, b], **fields}).encode()] for fields in ({}, {'outputs': outputs})]


def onnx_models():
    """Return ONNX models of small binary networks."""
    from support.tiny_onnx import networks

    return [[model.SerializeToString()] for model in networks()]
