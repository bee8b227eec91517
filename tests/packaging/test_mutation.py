"""The places and the verdicts of mutation testing (tools/mutate.py)."""

import csv
import pathlib
import subprocess
from types import SimpleNamespace

import mutate
import pytest
from support.native_program import ROOT  # its folder tools is in the path from here on

CLASSIFIER = 'tests/native/test_c_classifier.py'


def sources(language):
    found = (str(path.relative_to(ROOT)) for pattern in mutate.SOURCES[language] for path in sorted(ROOT.glob(pattern)))
    return [path for path in found if not mutate.EXCLUDED.search(path)]


def test_every_file_in_cpp_has_tests_of_its_part():
    paths = sources('cpp')
    assert len(paths) > 100
    for path in paths:
        closest, others = mutate.tests_of(path)
        assert closest and 'tests/native/test_plan.py' in [*closest, *others], path
        missing = [test for test in (*closest, *others) if not (ROOT / test).is_file()]
        assert missing == [], path


@pytest.mark.parametrize(
    'path, test',
    [
        ('bmx_melius/csrc/classifier/pixels.h', CLASSIFIER),
        ('bmx_melius/csrc/classifier/json_reader.cc', CLASSIFIER),
        ('bmx_melius/csrc/api/classifier.cc', CLASSIFIER),
        ('bmx_melius/csrc/api/classifier.h', CLASSIFIER),
        ('bmx_melius/csrc/kernels/common/int8_loops.h', 'tests/native/test_int8.py'),
        ('bmx_melius/csrc/kernels/reference/int8_reference.cc', 'tests/native/test_int8.py'),
        ('bmx_melius/csrc/kernels/x86/int8_avx512.cc', 'tests/native/test_int8.py'),
        ('bmx_melius/csrc/steps/int8_step.cc', 'tests/native/test_int8.py'),
        ('bmx_melius/csrc/steps/conv_step.cc', 'tests/native/test_engine.py'),
        ('bmx_melius/deployment/convert/quantization.py', 'tests/deployment/convert/test_quantization.py'),
        ('bmx_melius/deployment/convert/calibration.py', 'tests/deployment/convert/test_quantization.py'),
        ('bmx_melius/deployment/convert/calibration_images.py', 'tests/deployment/convert/test_quantization.py'),
        ('bmx_melius/deployment/program/reference.py', 'tests/deployment/program/test_integers.py'),
        ('bmx_melius/files/npz.py', 'tests/files/test_npz.py'),
    ],
)
def test_the_closest_tests_of_a_file(path, test):
    assert (ROOT / path).is_file() and mutate.tests_of(path)[0][0] == test


def test_a_part_in_cpp_without_tests_is_an_error():
    with pytest.raises(ValueError, match='TESTS has no tests for bmx_melius/csrc/new/part.cc'):
        mutate.tests_of('bmx_melius/csrc/new/part.cc')


def test_no_place_in_cpp_is_in_a_comment_or_a_text():
    source = b'int f(int x) {\n    // x < 1\n    const char* text = "x < 2";\n    return x < 3 ? 4 : 5;  // x < 6\n}\n'
    changed = [(place.kind, source[place.begin : place.end]) for place in mutate.cpp_places('a.cc', source)]
    assert changed == [('comparison', b'<'), ('bound', b'3')]


def test_a_copy_follows_the_checkout(tmp_path, monkeypatch):
    """Files that are gone are deleted, those that were compiled in the copy stay, and equal ones keep their time."""
    checkout, copied = tmp_path / 'checkout', tmp_path / 'copy'
    (checkout / 'folder').mkdir(parents=True)
    for name, text in {'.gitignore': '*.so\n', 'kept': '1', 'changed': '1', 'gone': '1', 'folder/gone': '1', 'library.so': '1'}.items():
        (checkout / name).write_text(text)
    subprocess.run('git init -q && git add .', shell=True, cwd=checkout, check=True)
    monkeypatch.setattr(mutate, 'ROOT', checkout)
    copy = mutate.Copy(copied, 1)
    copy.update()

    def names():
        return sorted(str(path.relative_to(copied)) for path in copied.rglob('*') if path.is_file())

    assert names() == ['.gitignore', 'changed', 'folder/gone', 'gone', 'kept']
    (copied / 'compiled.so').write_text('2')
    (checkout / 'gone').unlink()
    subprocess.run(['git', 'rm', '-q', '-f', 'folder/gone'], cwd=checkout, check=True)
    (checkout / 'changed').write_text('2')
    (checkout / 'new').write_text('2')
    before = (copied / 'kept').stat().st_mtime_ns
    copy.update()
    assert names() == ['.gitignore', 'changed', 'compiled.so', 'kept', 'new']
    assert (copied / 'changed').read_text() == '2' and (copied / 'kept').stat().st_mtime_ns == before


ONE, OTHER, FILE = 'tests/test_a.py::test_one', 'tests/test_b.py::test_other', 'tests/test_c.py'
NOTES = {'1': ONE, '2': OTHER, '3': f'{FILE} pytest ends with status -11', '4': 'pytest ends with status 255'}


@pytest.fixture
def confirm(tmp_path, monkeypatch):
    """Confirms caught mutants with the notes above; `failing` is what fails without mutants. Returns verdicts, and tests that ran."""
    monkeypatch.setattr(mutate, 'RESULTS', tmp_path / 'mutations.csv')
    keys = {('1', 'python', 'a.py', change) for change in NOTES}
    values = {'seed': '1', 'language': 'python', 'kind': 'check', 'place': 'a.py:1', 'tests': 'closest', 'verdict': 'caught'}
    mutate.write_results({change: {**values, 'change': change, 'note': note} for change, note in NOTES.items()})
    ran = []

    def confirmed(failing, built='checksum'):
        mutate.confirm(SimpleNamespace(build=lambda: built, failing=lambda tests, limit: ran.extend(tests) or failing), keys)
        with open(mutate.RESULTS, newline='') as file:
            return {row['change']: row['verdict'] for row in csv.DictReader(file)}, ran

    return confirmed


def test_what_fails_without_mutants_as_well_has_noticed_nothing(confirm, capsys):
    verdicts, ran = confirm([OTHER, f'{FILE}::test_of_a_file'])
    assert ran == [ONE, OTHER, FILE]
    assert verdicts == {'1': 'caught', '2': 'survived', '3': 'survived', '4': 'caught'}
    printed = capsys.readouterr().out
    assert 'without mutants: 1 of 3 tests pass' in printed
    assert 'not confirmed, because the file of the test is not known:\n  pytest ends with status 255' in printed


@pytest.mark.parametrize(
    'failing', [['pytest does not end within 3600 seconds'], [ONE, 'pytest ends with status 3'], ['tests/test_a.py'], [f'{ONE}_more']]
)
def test_a_run_without_mutants_that_ends_unexpectedly_confirms_nothing(confirm, failing):
    with pytest.raises(SystemExit, match='no verdict is confirmed'):
        confirm(failing)
    assert {row['verdict'] for row in mutate.read_results().values()} == {'caught'}


def test_nothing_is_confirmed_by_an_engine_that_does_not_compile(confirm):
    with pytest.raises(SystemExit, match='does not compile without mutants'):
        confirm([], built=None)


@pytest.mark.parametrize(
    'content, options, expected',
    [
        ('def test_one(): pass\n', [], []),
        ('def test_one(): assert False\ndef test_two(): pass\n', [], ['test_a.py::test_one']),
        ('def test_one(): assert False\ndef test_two(): assert False\n', ['-x'], ['test_a.py::test_one']),
        ('import os\ndef test_one(): os._exit(7)\n', [], ['pytest ends with status 7']),
        ('import time\ndef test_one(): time.sleep(60)\n', [], ['pytest does not end within 8 seconds']),
        ('import nothing_of_this_name\n', [], ['test_a.py', 'pytest ends with status 2']),
    ],
)
def test_how_tests_fail_is_told_apart(tmp_path, content, options, expected):
    pathlib.Path(tmp_path / 'test_a.py').write_text(content)
    pathlib.Path(tmp_path / 'conftest.py').write_text("from hypothesis import settings\nsettings.register_profile('unshrunk')\n")
    assert mutate.Copy(tmp_path, 1).failing(['test_a.py'], 8, *options) == expected


def test_a_crash_is_noted_with_the_file_of_the_test(tmp_path):
    path = sources('python')[0]
    source, tests = (ROOT / path).read_bytes(), mutate.tests_of(path)[0]
    (tmp_path / path).parent.mkdir(parents=True)
    copy = SimpleNamespace(folder=tmp_path, failing=lambda group, limit, *options: ['pytest ends with status -11'])
    place = mutate.Place('check', path, 0, 0, b'')
    assert mutate.judge(copy, place, source, 'closest', 'checksum') == ('caught', f'{tests[0]} pytest ends with status -11')
