"""What packaging, pins and documents promise: nothing forgotten, nothing said twice with different words."""

import fnmatch
import importlib
import importlib.metadata
import os
import pathlib
import pkgutil
import platform
import re
import runpy
import subprocess
import sys

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

import bmx_melius
import model_zoo
from bmx_melius._version import __version__
from bmx_melius.process import how_to_install_mxnet

PACKAGES = ('bmx_melius', 'model_zoo')
LIBRARIES = ('bmx_melius._engine', 'bmx_melius._mxnet_op')  # named like modules of Python's, but none
PYTHONS = ('3.8', '3.9', '3.10', '3.11')  # that MXNet supports
WITHOUT_MXNET = ('3.12', '3.13')  # that only run packed networks
TOOLS = ('docs', 'wheel', 'fuzz', 'scale', 'service-tests', 'pins')  # of requirements/NAME.txt, installed beside tests.txt
SUBSTITUTES = {'opencv-python': 'opencv-python-headless'}  # the same module without the need for the system's libGL


@pytest.fixture(scope='module')
def distribution():
    """What setup.py tells setuptools, as a dict of its keyword arguments."""
    program = (
        'import json, setuptools, runpy\n'
        'setuptools.setup = lambda **arguments: print(json.dumps(arguments, default=str))\n'
        "runpy.run_path('setup.py')\n"
    )
    output = subprocess.run([sys.executable, '-c', program], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    return yaml.safe_load(output)


def read_pins(name):
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith('#')]


def pins_for(python, *names):
    """Return the pinned versions that count for a Python version: canonical package name -> version."""
    environment = {'python_version': python, 'python_full_version': f'{python}.0'}
    versions = {}
    for pin in (pin for name in names for pin in read_pins(name)):
        (specifier,) = pin.specifier
        assert specifier.operator == '==', f'{pin} is not an exact version'
        if pin.marker is None or pin.marker.evaluate(environment):
            assert versions.setdefault(canonicalize_name(pin.name), specifier.version) == specifier.version, f'{pin.name} is pinned twice'
    return versions


def unsatisfied(requirements, versions):
    missing = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        version = versions.get(SUBSTITUTES.get(name, name))
        if version is None or not requirement.specifier.contains(version):
            missing.append(f'{requirement} (pinned: {version})')
    return missing


HANGING = """
import ctypes
import signal
import time


def test_hangs():
    {}


def test_runs():
    pass
"""
IN_PYTHON = 'time.sleep(60)'
IN_C = 'signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]), ctypes.PyDLL(None).sleep(60)'  # it does not wake up or run threads


@pytest.mark.parametrize(
    'call, shown',
    [(IN_PYTHON, ['Timeout', IN_PYTHON]), (IN_C, ['test_hanging.py", line 8 in test_hangs'])],
    ids=['python', 'c'],  # a process that hangs in C code is ended
)
def test_a_test_that_hangs_fails_with_a_traceback_and_the_next_one_runs(call, shown, tmp_path):
    (tmp_path / 'test_hanging.py').write_text(HANGING.format(call))
    command = [sys.executable, '-m', 'pytest', '-c', ROOT / 'pyproject.toml', '--rootdir', tmp_path, '-p', 'support.time_limit', '-n', '1']
    command += ['-o', 'timeout=1', '-o', 'timeout_backstop=1', tmp_path]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT / 'tests')}
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
    assert '1 failed, 1 passed' in done.stdout
    assert [words for words in shown if words not in done.stdout] == []


def test_every_test_has_a_limit_of_time(pytestconfig):
    assert 0 < float(pytestconfig.getini('timeout')) <= 300


def test_the_version_is_defined_in_one_place(distribution):
    assert distribution['version'] == bmx_melius.__version__ == __version__
    assert yaml.safe_load((ROOT / 'CITATION.cff').read_text())['version'] == __version__
    assert __version__ in re.search(r'^## \[.*$', (ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE).group()
    header = (ROOT / 'bmx_melius' / 'csrc' / 'api' / 'bmx_melius.h').read_text()
    assert '.'.join(re.findall(r'^#define BMX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$', header, re.MULTILINE)) == __version__
    for name in ('setup.py', 'pyproject.toml', 'CMakeLists.txt', 'bmx_melius/__init__.py'):
        assert __version__ not in (ROOT / name).read_text()


def test_documents_install_from_a_clone_with_extras_that_exist(distribution):
    """The project is not on PyPI: an installation by its name fails where nothing is installed yet."""
    documents = [ROOT / 'README.md', ROOT / 'benchmarks' / 'README.md', *(ROOT / 'docs').rglob('*.md')]
    fence = re.compile(r'^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    blocks = [block for path in documents for _, block in fence.findall(path.read_text(encoding='utf-8'))]
    installations = [line for block in blocks for line in block.splitlines() if 'pip install' in line]
    assert [line for line in installations if 'bmx-melius' in line] == []
    extras = [extra for line in installations for names in re.findall(r"'\.\[(.*?)\]'", line) for extra in names.split(',')]
    assert len(extras) > 5 and set(extras) <= set(distribution['extras_require'])


def test_the_console_script_resolves(distribution):
    (script,) = distribution['entry_points']['console_scripts']
    name, module, function = re.fullmatch(r'(\S+) = (\S+):(\S+)', script).groups()
    assert name == 'bmx-melius'
    assert callable(getattr(importlib.import_module(module), function))


def test_the_installed_console_script_runs():
    script = pathlib.Path(sys.executable).parent / 'bmx-melius'
    if not script.exists():
        pytest.skip(f'this project is not installed in the environment of {sys.executable}')
    shown = subprocess.run([str(script), '--help'], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert 'bmx-melius' in shown


def test_every_folder_with_code_is_a_package_that_is_shipped(distribution):
    folders = {path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob('*.py')}
    assert sorted(distribution['packages']) == sorted('.'.join(folder.parts) for folder in folders)


def test_both_packages_ship_their_types(distribution):
    for package in PACKAGES:
        assert (ROOT / package / 'py.typed').exists() and 'py.typed' in distribution['package_data'][package]
        assert f'{package}/py.typed' in (ROOT / 'MANIFEST.in').read_text()


def test_the_kernels_of_exported_c_are_shipped(distribution):
    """In the wheel and in the source distribution."""
    shipped = {path for pattern in distribution['package_data']['bmx_melius'] for path in (ROOT / 'bmx_melius').glob(pattern)}
    kernels = {path for path in (ROOT / 'bmx_melius').rglob('*.c') if 'csrc' not in path.parts}
    assert kernels and kernels <= shipped
    assert 'recursive-include bmx_melius/deployment/c_export *.c' in (ROOT / 'MANIFEST.in').read_text().splitlines()


def test_the_source_distribution_has_all_files_but_hidden_ones_and_each_of_its_patterns_finds_some():
    done = subprocess.run(['git', 'ls-files'], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        pytest.skip('this is not a clone')
    tracked = done.stdout.splitlines()
    included = {'MANIFEST.in', 'pyproject.toml', 'setup.py'}  # which setuptools adds, as it does modules of packages
    for command, *words in map(str.split, (ROOT / 'MANIFEST.in').read_text().splitlines()):
        folder, patterns = ('', words) if command == 'include' else (f'{words[0]}/', words[1:])
        for pattern in patterns:
            name_of = str if command == 'include' else os.path.basename
            found = {name for name in tracked if name.startswith(folder) and fnmatch.fnmatchcase(name_of(name), pattern)}
            assert found, f'{pattern} in MANIFEST.in finds nothing {folder and "in "}{folder}'
            included |= found
    modules = {name for name in tracked if name.endswith('.py') and name.split('/')[0] in PACKAGES}
    missing = {name for name in tracked if not name.startswith('.')} - included - modules
    assert not missing, f'not in the source distribution: {", ".join(sorted(missing))}'


@pytest.mark.parametrize(
    'module',
    sorted(
        module.name
        for package in (bmx_melius, model_zoo)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.')
        if module.name not in LIBRARIES
    ),
)
def test_each_module_can_be_imported_and_has_a_docstring(module):
    assert importlib.import_module(module).__doc__


@pytest.mark.parametrize('python', PYTHONS)
def test_pins_satisfy_the_ranges_of_setup_py(distribution, python):
    extras = distribution['extras_require']
    wanted = distribution['install_requires'] + [one for extra in ('demo', 'serve', 'test') for one in extras[extra]]  # not bench: large
    assert unsatisfied(map(Requirement, wanted), pins_for(python, 'tests')) == []
    tools = pins_for(python, 'tests', *TOOLS)  # one environment
    optional = [one for extra in ('docs', 'score', 'ray') for one in extras[extra]]
    assert unsatisfied(map(Requirement, optional), tools) == []


def test_requirements_of_extras_have_upper_bounds_and_each_extra_is_used_by_a_command(distribution):
    requirements = [Requirement(one) for extra in distribution['extras_require'].values() for one in extra]
    unbounded = [one for one in requirements if not any(part.operator in ('<', '<=', '==') for part in one.specifier)]
    assert [str(one) for one in unbounded] == []
    tool = runpy.run_path(str(ROOT / 'tools' / 'test_extras.py'))
    assert {*tool['USES'], *tool['NOT_TESTED']} == {'', *distribution['extras_require']}


def test_pinned_packages_miss_nothing_they_require():
    python = '{}.{}'.format(*sys.version_info)
    pins = pins_for(python, 'tests')
    for name, version in pins.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        if installed != version:
            pytest.skip(f'{sys.executable} has {name} {installed}, not the pinned {version}; the environment of `make test` has')
    for name in pins:
        needed = map(Requirement, importlib.metadata.requires(name) or [])
        assert unsatisfied([one for one in needed if one.marker is None or one.marker.evaluate({'extra': ''})], pins) == [], name


def test_supported_pythons_are_the_same_everywhere(distribution):
    assert distribution['python_requires'] == '>=3.8'
    listed = [one.rsplit(' ', 1)[1] for one in distribution['classifiers'] if one.startswith('Programming Language :: Python :: ')]
    assert tuple(listed) == PYTHONS + WITHOUT_MXNET


@pytest.mark.parametrize('python', PYTHONS + WITHOUT_MXNET)
def test_python_decides_whether_mxnet_is_required(distribution, python):
    requirements = map(Requirement, distribution['install_requires'])
    required = [one for one in requirements if one.marker is None or one.marker.evaluate({'python_version': python})]
    names, numpy = {one.name for one in required}, [one.specifier for one in required if one.name == 'numpy']
    with_mxnet = python in PYTHONS
    assert {'numpy', 'pillow'} <= names and ({'mxnet', 'gluoncv'} <= names) == with_mxnet
    assert with_mxnet or names == {'numpy', 'pillow'}
    assert all(specifier.contains('1.23.5') for specifier in numpy)
    assert all(specifier.contains('2.5.0') for specifier in numpy) == (not with_mxnet)


@pytest.mark.parametrize('python', PYTHONS + WITHOUT_MXNET)
def test_where_mxnet_is_missing_a_python_that_it_does_not_support_is_named(monkeypatch, python):
    monkeypatch.setattr(sys, 'version_info', (*map(int, python.split('.')), 1))
    monkeypatch.setattr(platform, 'python_version', lambda: f'{python}.1')
    expected = 'pip install mxnet==1.9.1' if python in PYTHONS else f'it requires Python 3.8 to 3.11, and this is Python {python}.1'
    assert how_to_install_mxnet() == expected


def test_pull_requests_and_releases_are_checked_and_only_what_was_tested_is_published():
    checks, release = (yaml.safe_load((ROOT / '.github' / 'workflows' / name).read_text()) for name in ('checks.yml', 'release.yml'))
    assert set(checks[True]) == {'pull_request', 'workflow_call'}  # YAML reads `on` as true
    assert release['jobs']['checks'] == {'uses': './.github/workflows/checks.yml'}
    assert targets_of(checks) == {'lint', 'test'} and 'wheel' in targets_of(release)
    assert targets_of(checks) | targets_of(release) <= set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE))
    assert set(release['jobs']['publish']['needs']) == set(release['jobs']) - {'publish'}


def targets_of(workflow):
    commands = ' '.join(step.get('run', '') for job in workflow['jobs'].values() for step in job.get('steps', []))
    return set(re.findall(r'\bmake (?:\S+=\S+ )*([a-z-]+)', commands))


def test_style_is_checked_without_mxnet_and_without_a_compiler():
    """`make lint` and `make format` only use an environment to themselves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith('MAKE')}
    for target in ('lint', 'format'):
        command = ['make', '--dry-run', 'LINT=nowhere', 'VENV=nothing', target]
        commands = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
        assert 'nowhere/bin/ruff' in commands and 'nothing' not in commands and 'setup.py' not in commands
    for python in PYTHONS + ('3.12',):
        assert {'ruff', 'mypy', 'import-linter'} <= set(pins_for(python, 'lint')) and 'mxnet' not in pins_for(python, 'lint')


def test_license_and_citation_exist_and_agree(distribution):
    license_text = (ROOT / 'LICENSE').read_text()
    assert 'Apache License' in license_text and 'END OF TERMS AND CONDITIONS' in license_text
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['license'] == distribution['license'] == 'Apache-2.0'
    assert citation['preferred-citation']['title'].startswith('MeliusNet')


def make_environment(tmp_path, interpreter, folder, times=1):
    """Run the set-up with a made-up interpreter, several times at once; return its exit status and the lines of its standard error."""
    fake = tmp_path / 'python'
    fake.write_text(f'#!/bin/sh\n{interpreter}\n')
    fake.chmod(0o755)
    command, environment = ['tools/make_venv.sh', str(folder), 'setup.py'], {**os.environ, 'PYTHON': str(fake)}
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(times)]
    lines = [line for one in started for line in one.communicate()[1].splitlines()]
    return max(one.returncode for one in started), lines


@pytest.mark.parametrize(
    'interpreter,expected',
    [
        ('case "$2" in *platform*) echo 3.12.1 ;; *) exit 1 ;; esac', r'Python 3.8, 3.9, 3.10 or 3.11 is needed.*is Python 3.12.1'),
        ('exit 127', r'Python 3.8, 3.9, 3.10 or 3.11 is needed.*no working .*python found'),
        (
            'case "$2" in *platform*) echo 3.11.2 ;; *ensurepip*) exit 1 ;; *-venv*) echo python3.11-venv ;; esac',
            r'cannot make virtual environments.*apt-get install python3.11-venv',
        ),
    ],
    ids=['unsupported', 'broken', 'without venv'],
)
def test_an_unsupported_python_is_reported_in_one_line(tmp_path, interpreter, expected):
    status, (line,) = make_environment(tmp_path, interpreter, tmp_path / 'venv')
    assert status == 1
    assert line.startswith('error: ') and re.search(expected, line)
    assert not (tmp_path / 'venv').exists()


# An interpreter that makes an environment in which everything works, except that MXNet finds no OpenMP.
WITHOUT_OPENMP = r"""
case "$*" in
    *platform*) echo 3.11.2 ;;
    '-m venv'*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    *'import mxnet'*) echo 'OSError: libgomp.so.1: cannot open shared object file' >&2; exit 1 ;;
esac
"""


def test_a_missing_system_library_is_named_and_the_environment_is_not_taken_for_ready(tmp_path):
    status, (*_, line) = make_environment(tmp_path, WITHOUT_OPENMP, tmp_path / 'venv')
    assert status == 1
    assert line.startswith('error: ') and 'apt-get install libgomp1 libquadmath0' in line
    assert not (tmp_path / 'venv' / '.ready').exists()


# An interpreter that makes an environment slowly, and notes that in the file `made`.
SLOW = r"""
folder=$(dirname "$0")
case "$*" in
    *platform*) echo 3.11.2 ;;
    '-m venv'*) echo begins >>"$folder/made"; sleep 0.5; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
esac
"""


def test_of_two_commands_at_once_one_makes_the_environment_and_the_other_waits(tmp_path):
    status, lines = make_environment(tmp_path, SLOW, tmp_path / 'venv', times=2)
    assert status == 0 and (tmp_path / 'made').read_text() == 'begins\n'
    assert [sum(line.startswith(word) for line in lines) for word in ('Setting up', 'Waiting for')] == [1, 1]


def test_each_step_of_the_set_up_is_announced_and_nothing_where_none_is_needed(tmp_path):
    _, (title, *steps) = make_environment(tmp_path, SLOW, tmp_path / 'venv')
    assert title.startswith('Setting up ') and 'Python 3.11.2' in title
    pins = len(set(re.findall(r'^(\w.*?)==', (ROOT / 'requirements' / 'tests.txt').read_text(), re.MULTILINE)))
    assert [line.split(':')[0] for line in steps] == [f'  {number} of 4' for number in range(1, 5)] and f' {pins} packages' in steps[1]
    assert make_environment(tmp_path, SLOW, tmp_path / 'venv') == (0, [])


def test_a_link_to_the_environment_of_another_folder_is_refused_before_anything_in_it_is_removed(tmp_path):
    others, link = tmp_path / 'others', tmp_path / 'venv'
    others.mkdir()
    (others / 'file').touch()
    link.symlink_to(others)
    status, lines = make_environment(tmp_path, SLOW, link)
    assert status == 1 and len(lines) == 1 and f'is a link to {others}' in lines[0]
    assert (others / 'file').exists() and not (tmp_path / 'made').exists()


def test_the_environment_is_made_again_when_a_file_has_changed_or_the_python_differs(tmp_path):
    made, ready = tmp_path / 'made', tmp_path / 'venv' / '.ready'
    for times, interpreter in ((1, SLOW), (1, SLOW), (2, SLOW + 'echo other\n')):
        assert make_environment(tmp_path, interpreter, tmp_path / 'venv')[0] == 0
        assert len(made.read_text().split()) == times and ready.exists()
    os.utime(ready, (0, 0))  # older than setup.py
    assert make_environment(tmp_path, SLOW + 'echo other\n', tmp_path / 'venv')[0] == 0
    assert len(made.read_text().split()) == 3
