"""The classifier of the C interface (bmx_classifier_...) in the library of the Python package: it answers as a `Session` does."""

import ctypes
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import needs_engine
from support.packed import make_program, write_packed

import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

pytestmark = needs_engine

EMBEDDED = 'bmx_melius_description'
NAMES = ['ant', 'bee', 'cät', 'dog \U0001f415', 'elk "e"', 'fox\\', '']
RGB = bmx.InputSpec(size=12, resize=15)


@pytest.fixture(scope='module')
def functions():
    """A function that calls one of the library by its name without ``bmx_classifier_``."""
    library = ctypes.CDLL(engine.load()._name)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    pixels = (pointer, ctypes.c_char_p, number, number, number)
    declared = {
        'load': (pointer, ctypes.c_char_p, ctypes.c_int),
        'load_memory': (pointer, ctypes.c_char_p, size, ctypes.c_char_p, size, ctypes.c_int),
        'destroy': (None, pointer),
        'classes': (size, pointer),
        'class_name': (ctypes.c_char_p, pointer, size),
        'input_shape': (ctypes.c_int, pointer, number * 4),
        'preprocess': (ctypes.c_int, *pixels, pointer),
        'classify': (size, *pixels, ctypes.c_int, size, ctypes.POINTER(size), ctypes.POINTER(ctypes.c_double)),
    }
    for name, (result, *arguments) in declared.items():
        function = getattr(library, f'bmx_classifier_{name}')
        function.restype, function.argtypes = result, arguments
    library.bmx_last_error.restype = ctypes.c_char_p
    return library


class InC:
    """A classifier of the library, from the contents of its files, or from the files."""

    def __init__(self, library, prefix, from_memory):
        self.library = library
        if from_memory:
            contents = [(prefix.parent / f'{prefix.name}{end}').read_bytes() for end in ('-symbol.json', '-0000.params')]
            self.handle = library.bmx_classifier_load_memory(*(part for content in contents for part in (content, len(content))), 0)
        else:
            self.handle = library.bmx_classifier_load(str(prefix).encode(), 0)
        if not self.handle:
            raise RuntimeError(library.bmx_last_error().decode())

    def __del__(self):
        self.library.bmx_classifier_destroy(getattr(self, 'handle', None))

    def input(self, image):
        shape = (ctypes.c_int64 * 4)()
        assert self.library.bmx_classifier_input_shape(self.handle, shape) == 0
        result = np.empty(tuple(shape), np.float32)
        if self.library.bmx_classifier_preprocess(self.handle, image.tobytes(), *image.shape, result.ctypes.data):
            raise RuntimeError(self.library.bmx_last_error().decode())
        return result

    def classify(self, image, top):
        numbers, probabilities = (ctypes.c_size_t * top)(), (ctypes.c_double * top)()
        found = self.library.bmx_classifier_classify(self.handle, image.tobytes(), *image.shape, 1, top, numbers, probabilities)
        if not found:
            raise RuntimeError(self.library.bmx_last_error().decode())
        names = [self.library.bmx_classifier_class_name(self.handle, number) for number in numbers[:found]]
        return [(number, None if name is None else name.decode(), row) for number, name, row in zip(numbers, names, probabilities)]


def write(prefix, spec, names=NAMES, text=None):
    """Write a packed network whose symbol has a description, an object or a JSON text."""
    write_packed(prefix, make_program(channels=spec.channels), [0])
    symbol = prefix.parent / f'{prefix.name}-symbol.json'
    graph = json.loads(symbol.read_text())
    graph['attrs'][EMBEDDED] = ['str', json.dumps({'input': spec.to_json(), 'class_names': names}) if text is None else text]
    symbol.write_text(json.dumps(graph))
    return prefix


def spec_of(channels, size, resize, seed=0):
    random = np.random.RandomState(seed)
    return bmx.InputSpec(channels, size, resize, tuple(random.uniform(-9, 200, channels)), tuple(random.uniform(0.1, 90, channels)))


def image_of(height, width, channels, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)


@pytest.mark.parametrize('from_memory', [False, True])
@pytest.mark.parametrize('channels', [1, 3, 5])
def test_numbers_names_and_probabilities_are_those_of_a_session(functions, tmp_path, channels, from_memory):
    prefix = write(tmp_path / 'net', spec_of(channels, 12, 15))
    session, classifier = bmx.Session(prefix), InC(functions, prefix, from_memory)
    assert functions.bmx_classifier_classes(classifier.handle) == len(NAMES)
    for seed in range(8):
        image = image_of(20 + 3 * seed, 31 - seed, channels, seed)
        for top in (1, 3, len(NAMES), len(NAMES) + 4):
            expected, found = session.classify(image, top), classifier.classify(image, top)
            assert [(NAMES[number], name) for number, name, _ in found] == [(name, name) for name, _ in expected]
            np.testing.assert_allclose([row for *_, row in found], [probability for _, probability in expected], rtol=1e-12)


def test_without_names_classes_have_numbers_and_old_files_are_described_by_the_file_beside_them(functions, tmp_path):
    write_packed(tmp_path / 'net', make_program(channels=3), [0])
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': RGB.to_json(), 'class_names': None}))
    image = image_of(30, 40, 3)
    found = InC(functions, tmp_path / 'net', from_memory=False).classify(image, 7)
    assert [(str(number), name) for number, name, _ in found] == [
        (name, None) for name, _ in bmx.Session(tmp_path / 'net').classify(image, 7)
    ]
    with pytest.raises(RuntimeError, match='symbol has no description of the preprocessing of images'):
        InC(functions, tmp_path / 'net', from_memory=True)


@given(st.data())
def test_the_input_is_that_of_python_bit_for_bit(functions, tmp_path_factory, data):
    channels = data.draw(st.sampled_from([1, 3, 5]))
    size = data.draw(st.integers(4, 40))
    resize = data.draw(st.none() | st.integers(size, 60))
    spec = spec_of(channels, size, resize, data.draw(st.integers(0, 99)))
    sides = st.integers(1, 70) | st.just(2 * (resize or size))  # where sides are halved OpenCV computes otherwise
    others = [1, 3] if channels in (1, 3) else [channels]
    image = image_of(data.draw(sides), data.draw(sides), data.draw(st.sampled_from(others)))
    classifier = InC(functions, write(tmp_path_factory.mktemp('net') / 'net', spec), from_memory=True)
    np.testing.assert_array_equal(classifier.input(image), spec.array(image))


def test_the_locale_of_the_program_does_not_change_numbers(functions, tmp_path):
    """In C a locale may have a decimal comma."""
    import locale

    known = [name for name in ('de_DE.UTF-8', 'fr_FR.UTF-8') if _has(locale, name)]
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, known[0] if known else 'C')
        spec = spec_of(3, 12, None)
        image = image_of(12, 12, 3)
        found = InC(functions, write(tmp_path / 'net', spec), from_memory=True).input(image)
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
    np.testing.assert_array_equal(found, spec.array(image))


def _has(locale, name):
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, name)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_NUMERIC, before)
    return True


def test_images_that_cannot_be_classified_are_refused(functions, tmp_path):
    classifier = InC(functions, write(tmp_path / 'net', RGB), from_memory=True)
    for shape, message in [
        ((0, 5, 3), 'an image of 0 x 5 pixels is not possible; it must have 1 to 134217728'),
        ((-1, -5, 3), 'an image of -1 x -5 pixels is not possible'),
        ((1 << 62, 4, 3), 'is not possible'),
        ((5, 5, 2), r'the image has 2 channels, but the network takes 3 \(RGB\) or 1 \(gray\)'),
        ((5, 5, -3), 'the image has -3 channels'),
        ((1, 1 << 24, 1), 'an image of 16777216 x 1 pixels would be resized to 251658240 x 15; at most 134217728 pixels'),
    ]:
        image = type('Image', (), {'shape': shape, 'tobytes': lambda self: bytes(1 << 24)})()
        for call in (lambda image=image: classifier.classify(image, 1), lambda image=image: classifier.input(image)):
            with pytest.raises(RuntimeError, match=message):
                call()
    with pytest.raises(RuntimeError, match='there is no class 7: the network has 7'):
        if functions.bmx_classifier_class_name(classifier.handle, 7) is None:
            raise RuntimeError(functions.bmx_last_error().decode())


def test_scores_that_are_not_finite_are_an_error(functions, tmp_path):
    program = make_program(channels=3)
    program.operations[-1].arrays['bias'][2] = np.inf
    write_packed(tmp_path / 'net', program, [0])
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': RGB.to_json()}))
    classifier = InC(functions, tmp_path / 'net', from_memory=False)
    with pytest.raises(RuntimeError, match='net gives values that are not finite for the image'):
        classifier.classify(image_of(20, 20, 3), 1)


INPUT = json.dumps(RGB.to_json())


@pytest.mark.parametrize(
    'text, message',
    [
        ('', 'expected an object'),
        ('[]', 'expected an object'),
        ('{"input": ' + INPUT, "expected ','"),
        ('{"input": ' + INPUT + '} 1', 'expected the end of the text'),
        ('{"input": ' + INPUT + ',}', 'expected a string'),
        ('{"input": {}}', 'an input has the fields'),
        ('{"input": {"size": 1, "size": 1, "size": 1, "mean": [1], "std": [1]}}', 'an input has the fields'),
        ('{"input": {"size": 3, "more": 4}}', 'no field of this name'),
        ('{"input": 3}', 'expected an object'),
        (INPUT.replace('12', '12.5').join(['{"input": ', '}']), 'expected a whole number'),
        (INPUT.replace('12,', '012,').join(['{"input": ', '}']), "expected ','"),
        (INPUT.replace('123.68', '1e999').join(['{"input": ', '}']), 'too large|finite'),
        (INPUT.replace('123.68', 'NaN').join(['{"input": ', '}']), 'expected a number'),
        (INPUT.replace('123.68', '1.').join(['{"input": ', '}']), 'expected a digit'),
        (INPUT.replace('[123.68', '[' + '1, ' * 600 + '1').join(['{"input": ', '}']), 'more numbers than channels'),
        ('{"input": ' + INPUT + ', "class_names": [3]}', 'expected a string'),
        ('{"input": ' + INPUT + ', "class_names": ["\\u001b[2J"]}', 'control characters'),
        ('{"input": ' + INPUT + ', "class_names": ["\\u009b"]}', 'control characters'),
        ('{"input": ' + INPUT + ', "class_names": ["\\u2028"]}', 'control characters'),
        ('{"input": ' + INPUT + ', "class_names": ["a\\u0000b"]}', 'control characters'),
        ('{"input": ' + INPUT + ', "class_names": ["\\ud800"]}', 'surrogate'),
        ('{"input": ' + INPUT + ', "class_names": ["\\x"]}', 'unknown escape'),
        ('{"input": ' + INPUT + ', "class_names": ["\\u00g0"]}', 'hexadecimal'),
        ('{"input": ' + INPUT + ', "class_names": ["a\nb"]}', 'control character'),
        ('{"input": ' + INPUT + ', "counts": ' + '[' * 5000 + ']' * 5000 + '}', 'inside each other'),
        ('{"input": ' + INPUT + ', "class_names": ["a"]}', 'names 1 classes, but the network has 7'),
    ],
)
def test_what_both_readers_refuse(functions, tmp_path, text, message):
    prefix = write(tmp_path / 'net', RGB, text=text)
    with pytest.raises(bmx.UserError):
        bmx.Session(prefix).classify(image_of(20, 20, 3))
    for from_memory in (False, True):
        with pytest.raises(RuntimeError, match=message) as caught:
            InC(functions, prefix, from_memory)
        assert '\n' not in str(caught.value) and 'symbol' in str(caught.value)


@pytest.mark.parametrize(
    'text',
    [
        ' {\t"input"\r\n: ' + INPUT + ' } ',
        '{"model": {"a": [true, false, null, -0.5E+3, "\\"\\\\\\/\\u0041"]}, "input": null, "input": ' + INPUT + '}',
        '{"input": ' + INPUT.replace('15', 'null') + ', "class_names": null}',
        '{"class_names": ["\\u00e4", "\\ud83d\\udc15", "ß", "\U0001f415", "\\/", "", "\\"\\\\"], "input": ' + INPUT + '}',
    ],
)
def test_what_both_readers_accept(functions, tmp_path, text):
    prefix, image = write(tmp_path / 'net', RGB, text=text), image_of(20, 20, 3)
    expected = bmx.Session(prefix).classify(image, 7)
    found = InC(functions, prefix, from_memory=True).classify(image, 7)
    assert [str(number) if name is None else name for number, name, _ in found] == [name for name, _ in expected]


def test_bytes_that_are_not_utf8_are_refused(functions, tmp_path):
    prefix = write(tmp_path / 'net', RGB)
    symbol = tmp_path / 'net-symbol.json'
    for wrong in (b'\xff', b'\xc0\x80', b'\xed\xa0\x80', b'\xf4\x90\x80\x80', b'\xe2\x82', b'\x80'):
        symbol.write_bytes(symbol.read_bytes().replace(b'"net_program"', b'"' + wrong + b'"'))
        with pytest.raises(RuntimeError, match='invalid UTF-8'):
            InC(functions, prefix, from_memory=True)
        write(tmp_path / 'net', RGB)


@pytest.mark.parametrize('ending, described', [('-symbol.json', True), ('-summary.json', False)])
def test_a_file_that_is_too_large_is_refused_before_it_is_read(functions, tmp_path, ending, described):
    """Its content would not fit into the memory; on the disk it takes no space."""
    prefix = write(tmp_path / 'net', RGB)
    if not described:
        write_packed(prefix, make_program(channels=3), [0])
    with open(f'{prefix}{ending}', 'wb') as file:
        file.truncate(1 << 40)
    with pytest.raises(RuntimeError, match=f'net{ending} has {1 << 40} bytes; at most {1 << 26} are possible'):
        InC(functions, prefix, from_memory=False)


def test_damaged_files_cause_nothing_but_errors(functions, tmp_path):
    """Every byte of the symbol is changed once; `tests/fuzz` does more."""
    prefix = write(tmp_path / 'net', RGB)
    symbol, parameters = (tmp_path / f'net{end}' for end in ('-symbol.json', '-0000.params'))
    content, arrays = symbol.read_bytes(), parameters.read_bytes()
    refused = 0
    for place in range(len(content)):
        damaged = content[:place] + struct.pack('B', content[place] ^ 1 << place % 8) + content[place + 1 :]
        for text in (damaged, content[:place]):
            handle = functions.bmx_classifier_load_memory(text, len(text), arrays, len(arrays), 0)
            refused += not handle
            functions.bmx_classifier_destroy(handle)
    assert refused > len(content) and InC(functions, prefix, from_memory=True)
