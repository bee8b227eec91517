"""What the fuzzers of Python do with an input: each target reads files of one kind, as the library does.

A target may raise `UserError`. Everything else, a crash, and too much time or memory is a defect.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
import random
import signal
import tarfile
import tempfile
import zipfile
from typing import Callable, Sequence

import numpy as np
from support.refusals import place_of

from bmx_melius.data.tar_format import read_members
from bmx_melius.deployment.program.operations import ProgramError
from bmx_melius.deployment.program.packed_operator import STRUCTURE, read_structure
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import runs_without_mxnet
from bmx_melius.deployment.runtime.session import Session
from bmx_melius.errors import UserError
from bmx_melius.files.exported import Exported
from bmx_melius.files.parameters import read_parameters
from bmx_melius.files.symbol_json import SymbolJson
from bmx_melius.scoring.images import list_images
from bmx_melius.vision.image_headers import MAX_BYTES, cost_of
from bmx_melius.vision.pixels import decode, format_of, resize
from bmx_melius.vision.preprocessing import InputSpec

from . import seeds
from .mutators import (
    change_bytes,
    join,
    mutate_checkpoint,
    mutate_index,
    mutate_json,
    mutate_npy,
    mutate_octets,
    mutate_onnx,
    mutate_program,
    mutate_record,
    mutate_structure,
    mutate_symbol_of_program,
    mutate_tar,
    split,
)

_MAX_ELEMENTS = 1 << 16  # of a map of a program that is run
_IMAGE_BYTES = 64 << 20  # of memory that decoding may take beside what the headers of an image say
_ONNX_BYTES = 64 << 20  # of memory that a model may take


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes
    ----------
    read : callable (folder)
        Reads the files; raises `UserError` if they are damaged.
    files : tuple of str
        The names of the files of an input.
    seeds : callable
        Returns the corpus to begin with: lists of the contents of the files.
    mutators : sequence of callable
        One for each file; or one for all of them, whose first argument is the list of the contents.
    """

    read: Callable
    files: Sequence[str]
    seeds: Callable
    mutators: Sequence[Callable] = (mutate_octets,)

    def run(self, content):
        """Read an input, bytes made by `join` and changed by a fuzzer. Return whether it was accepted."""
        with tempfile.TemporaryDirectory(dir=_scratch()) as folder:
            for name, part in zip(self.files, split(content, len(self.files))):
                pathlib.Path(folder, name).write_bytes(part)
            try:
                self.read(folder)
            except UserError as error:
                if '\n' in str(error):
                    raise AssertionError(f'a message of several lines: {error}') from error
                return False
        return True

    def corpus(self):
        """Return the seeds as inputs."""
        return [join(parts) for parts in self.seeds()]

    def mutate(self, content, seed, mutate_bytes=change_bytes):
        """Return a changed copy of an input."""
        generator, parts = random.Random(seed), split(content, len(self.files))
        if len(self.mutators) < len(parts) and generator.random() < 0.5:
            return join(self.mutators[0](parts, generator, mutate_bytes))
        number = generator.randrange(len(parts))
        mutator = self.mutators[number] if len(self.mutators) == len(parts) else mutate_octets
        mutator = mutator if generator.random() < 0.7 else mutate_octets
        parts[number] = mutator(parts[number], generator, mutate_bytes)
        return join(parts)


def _scratch():
    """Return a folder in memory if there is one: every input is written to files."""
    return '/dev/shm' if os.access('/dev/shm', os.W_OK) else None


def _read_program(folder):
    """Compare the two readers of programs: they must agree, also in the place of what is wrong."""
    content = pathlib.Path(folder, 'words').read_bytes()
    words = np.frombuffer(content[: len(content) // 4 * 4], '<i4').astype(np.int32)
    messages = [_refusal(read, words) for read in (Program.from_words, _create_and_destroy)]
    if place_of(messages[0]) != place_of(messages[1]):
        raise AssertionError(f'the readers disagree: {messages}')
    if messages[0]:
        raise ProgramError(messages[0])
    program = Program.from_words(words)
    Program.from_structure(program.to_structure())
    if _is_small(program):
        _run(engine.Runner(program, words).run, [np.ones((2, *value.shape), np.float32) for value in program.inputs], 2)


def _is_small(program):
    return sum(value.channels * value.height * value.width for value in program.values()) < _MAX_ELEMENTS


def _run(run, *arguments):
    """Run a valid program on inputs of the size at conversion, which only the limit of memory may refuse."""
    try:
        run(*arguments)
    except UserError as error:
        if 'bytes of' not in str(error):
            raise AssertionError(f'a valid program cannot be run: {error}') from error


def _refusal(read, words):
    try:
        read(words)
    except ProgramError as error:
        return str(error)
    return ''


def _create_and_destroy(words):
    engine.load().bmx_program_destroy(engine._create(words, 'exact'))


def _read_structure(folder):
    text = pathlib.Path(folder, 'structure').read_text('latin-1')
    read_structure({STRUCTURE: text})


def _read_packed(folder):
    prefix = os.path.join(folder, 'net')
    runs_without_mxnet(prefix)
    session = Session(prefix, threads=1)
    if _is_small(session._runner.program):
        _run(session, *[np.ones([size or 1 for size in shape], np.float32) for shape in session.input_shapes])
    repr(session)


def _read_parameters(folder):
    path = pathlib.Path(folder, 'net.params')
    arrays = read_parameters(path)
    assert sum(array.nbytes for array in arrays.values()) <= path.stat().st_size


def _read_symbol(folder):
    symbol = SymbolJson.read(os.path.join(folder, 'net-symbol.json'))
    symbol.drop_unused()
    SymbolJson.parse(symbol.text(), 'the text written')
    description = Exported(os.path.join(folder, 'net')).description()
    description.model()
    description.class_names()
    spec = description.input_spec()
    if spec:
        spec.array(np.zeros((5, 4, 3), np.uint8))


def _read_loaded_symbol(folder):
    """Load a symbol into MXNet and infer its shapes."""
    from bmx_melius.graph.tracing import load_symbol, read_graph

    symbol = load_symbol(os.path.join(folder, 'net-symbol.json'))
    read_graph(symbol, seeds.IMAGE_SHAPE)


def _read_image(folder):
    content = pathlib.Path(folder, 'image').read_bytes()
    form = format_of(content)
    most = _IMAGE_BYTES + 16 * len(content) + (cost_of(content, form.name).certain if form else 0)

    def read(channels):
        before = _memory('VmRSS')
        with open('/proc/self/clear_refs', 'w') as file:
            file.write('5')  # the peak begins here
        try:
            resize(decode(content, 'image', channels), 5, 7)
        finally:
            taken = _memory('VmHWM') - before
            if taken > min(most, MAX_BYTES + _IMAGE_BYTES):
                raise AssertionError(f'decoding took {taken:,} bytes, more than {most:,}')

    _read_in_ways([functools.partial(read, channels) for channels in (3, 1, seeds.CHANNELS)])


def _memory(name):
    """Return a number of bytes of this process: VmRSS, what it has in memory, VmHWM, the peak of it, or VmData, its data."""
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def _read_in_ways(readers):
    """Call all functions that read an input; raise the first `UserError` if there is no one that accepts it."""
    refusals = []
    for read in readers:
        try:
            read()
        except UserError as error:
            refusals.append(error)
    if len(refusals) == len(readers):
        raise refusals[0]


def _read_npy(folder):
    """Read an array as images for calibration, as weights of training images, and in an archive."""
    from bmx_melius.data.bootstrap import open_bootstrap
    from bmx_melius.deployment.convert.calibration_images import calibration_batches
    from bmx_melius.files.npz import read_npz

    path, archive = os.path.join(folder, 'array.npy'), os.path.join(folder, 'arrays.npz')
    with zipfile.ZipFile(archive, 'w') as file:
        file.write(path, 'array.npy')

    def calibrate(spec):
        batches = calibration_batches(path, spec)
        assert all(batch.dtype == np.float32 and batch.size and np.isfinite(batch).all() for batch in batches)
        assert sum(batch.size for batch in batches) <= os.path.getsize(path)

    def bootstrap():
        assert max(open_bootstrap(path, seeds.WEIGHTS, 0).indices(0)) < seeds.WEIGHTS

    _read_in_ways([lambda: calibrate(None), lambda: calibrate(InputSpec(size=8)), bootstrap, lambda: read_npz(archive)])


def _read_records(folder):
    """Check a record file, and read it by MXNet's reader as training does: what it does not withstand, the check must find."""
    from bmx_melius.data.augmentation import Augmentation
    from bmx_melius.data.record_source import RecordSource
    from bmx_melius.data.records import RecordFile
    from bmx_melius.data.source import Batching
    from bmx_melius.vision.preprocessing import InputSpec

    records = RecordFile(os.path.join(folder, 'images.rec'), os.path.join(folder, 'images.idx'))
    if not records.unlike_mxnet:
        source = RecordSource(records, records, InputSpec(size=8, resize=8), Augmentation(), Batching(2), threads=1)
        for batches in (source.train(0), source.validation()):
            for images, _ in batches:
                images.wait_to_read()


def _read_tar(folder):
    """List the images of an archive and read them: all that `tarfile` finds, unless the archive is refused or doubted."""
    path = os.path.join(folder, 'images.tar')
    listing = list_images([path])
    for image in listing.images:
        with contextlib.suppress(UserError):  # of a link
            assert len(image.read()) <= os.path.getsize(path)
    members, doubt = read_members(path)
    places = {(member.offset, member.size) for member in members}
    assert all(offset + size <= os.path.getsize(path) for offset, size in places)
    with contextlib.suppress(tarfile.TarError, ValueError), tarfile.open(path, 'r:') as archive:
        assert doubt or all((member.offset_data, member.size) in places for member in archive if member.isreg() and not member.issparse())


def _read_index(folder):
    """List the images of a record file and read them: all records of the file, whatever its index has."""
    path, index = (os.path.join(folder, name) for name in ('images.rec', 'images.idx'))
    if not os.path.getsize(index):
        os.unlink(index)
    images = list_images([path]).images
    assert sum(image.size for image in images) == os.path.getsize(path)
    assert {image.offset for image in images} == {0, *(image.offset + image.size for image in images)} - {os.path.getsize(path)}
    for image in images:
        with contextlib.suppress(UserError):  # it has no label
            image.read()


def _read_request(head, path):
    """Read a request as a process of the service does."""
    from bmx_melius.limited_process import LENGTHS
    from bmx_melius.serving.reading import respond

    lengths, text, *arrays = respond(head, path.read_bytes())
    assert LENGTHS.unpack(lengths) == (len(text), sum(map(len, arrays)))
    answer = json.loads(text)
    if 'refusal' in answer:
        raise UserError(answer['refusal'][1])


def _read_upload(folder):
    head = {'spec': InputSpec(size=8, resize=9).to_json(), 'pixels': 1 << 22, 'form': None}
    path = pathlib.Path(folder, 'upload')
    _read_request({**head, 'form': seeds.FORM} if path.read_bytes().startswith(b'--') else head, path)


def _log_request(folder):
    """Read a form as a process of the service does, and check the length of what libraries write about it."""
    from bmx_melius.limited_process import LOG_BYTES, MessageLog

    error = os.dup(2)
    with tempfile.TemporaryFile() as written, open(2, 'w', errors='backslashreplace', closefd=False) as stream:
        handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(handler)
        try:
            os.dup2(written.fileno(), 2)
            with MessageLog() as log:
                try:
                    _read_upload(folder)
                finally:
                    log.end_message()
        finally:
            os.dup2(error, 2)
            os.close(error)
            logging.getLogger().removeHandler(handler)
            assert written.seek(0, os.SEEK_END) <= LOG_BYTES


def _read_arrays(folder):
    _read_request({'length': None, 'inputs': ['a', 'b'], 'outputs': ['x', 'y']}, pathlib.Path(folder, 'request.json'))


def _read_checkpoint_of_bmxnet(folder):
    from bmx_melius.importers.bmxnet_v2 import load_reference_parameters, reference_options

    path = os.path.join(folder, 'checkpoint.params')
    reference_options(path)
    load_reference_parameters(seeds.small_meliusnet(), path)


def _read_converted(folder):
    from bmx_melius.importers.bmxnet_v2_converted import read_converted

    read_converted(os.path.join(folder, 'net-symbol.json'), os.path.join(folder, 'net-0000.params'), seeds.CONVERTED_SHAPE)


def _read_keras(folder):
    from model_zoo import load_larq_parameters

    load_larq_parameters(seeds.small_meliusnet(), os.path.join(folder, 'weights.h5'))


@functools.lru_cache(maxsize=1)
def _trainer():
    return seeds.trained()[1]


def _read_optimizer(folder):
    from bmx_melius.training.saving.optimizer_state import load_optimizer

    load_optimizer(_trainer(), os.path.join(folder, 'optimizer.states'))


def _read_run(folder):
    from bmx_melius.training.progress import Progress
    from bmx_melius.training.saving.stored_checkpoints import find_intact

    for file in seeds.CHECKPOINT_FILES:
        open(os.path.join(folder, file), 'wb').close()
    state, _, _ = find_intact(folder)
    Progress(**state['progress'])


def _read_onnx(folder):
    """Import a model with the limits of the library, but with a fork in place of its separate process, which takes longer to begin."""
    from unittest import mock

    from bmx_melius.deployment.onnx import conversion

    path = os.path.join(folder, 'net.onnx')
    with mock.patch.object(conversion, 'tried', _tried):
        conversion.import_onnx(path, os.path.join(folder, 'packed'), zero_is_positive=True)


def _tried(*question):
    from bmx_melius.deployment.onnx.trial import hand_over, received

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)  # a fuzzer would report them
        try:
            memory = _memory('VmData') + _ONNX_BYTES  # a child of a fork has what this process has
            with open(writing, 'wb') as stream:
                hand_over(stream, question, memory, 5)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        with open(reading, 'rb') as stream:
            return received(stream, question[0])
    except EOFError as error:
        raise UserError(f'{question[0]}: the process that reads it has ended') from error
    finally:
        os.waitpid(child, 0)


TARGETS = {
    'program': Target(_read_program, ('words',), seeds.programs, (mutate_program,)),
    'structure': Target(_read_structure, ('structure',), seeds.structures, (mutate_structure,)),
    'params': Target(_read_parameters, ('net.params',), seeds.parameter_files),
    'packed': Target(_read_packed, ('net-symbol.json', 'net-0000.params'), seeds.packed_files, (mutate_symbol_of_program,)),
    'symbol': Target(_read_symbol, ('net-symbol.json',), seeds.symbols, (mutate_json,)),
    'loaded-symbol': Target(_read_loaded_symbol, ('net-symbol.json',), seeds.float_symbols, (mutate_json,)),
    'bmxnet-checkpoint': Target(_read_checkpoint_of_bmxnet, ('checkpoint.params',), seeds.bmxnet_checkpoints),
    'bmxnet-converted': Target(
        _read_converted, ('net-symbol.json', 'net-0000.params'), seeds.converted_files, (mutate_json, mutate_octets)
    ),
    'keras': Target(_read_keras, ('weights.h5',), seeds.keras_files),
    'optimizer': Target(_read_optimizer, ('optimizer.states',), seeds.optimizer_states),
    'checkpoint': Target(_read_run, ('checkpoint.json', 'checkpoint-previous.json'), seeds.checkpoints, (mutate_checkpoint,) * 2),
    'image': Target(_read_image, ('image',), seeds.images),
    'npy': Target(_read_npy, ('array.npy',), seeds.npy_files, (mutate_npy,)),
    'upload': Target(_read_upload, ('upload',), seeds.uploads),
    'log': Target(_log_request, ('upload',), seeds.logged_uploads),
    'arrays': Target(_read_arrays, ('request.json',), seeds.requests, (mutate_json,)),
    'onnx': Target(_read_onnx, ('net.onnx',), seeds.onnx_models, (mutate_onnx,)),
    'tar': Target(_read_tar, ('images.tar',), seeds.archives, (mutate_tar,)),
    'index': Target(_read_index, ('images.rec', 'images.idx'), seeds.indexed_records, (mutate_record, mutate_index)),
    'records': Target(_read_records, ('images.rec', 'images.idx'), seeds.record_files, (mutate_record, mutate_octets)),
}
