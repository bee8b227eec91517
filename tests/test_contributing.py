"""The recipes of CONTRIBUTING.md, followed in a copy of the project: its code is put where the text says, and the result is used."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
COPIED = ('bmx_melius', 'model_zoo', 'experiments', 'docs', 'tests', 'pyproject.toml', 'train_imagenet.py')
SECTIONS = dict(re.findall(r'^## (.*)\n((?:(?!## ).*\n)*)', (ROOT / 'CONTRIBUTING.md').read_text(), re.MULTILINE))


class Project:
    """A copy of the project, in which a contributor works."""

    def __init__(self, folder):
        self.folder = folder
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.png', 'csrc'))
            else:
                shutil.copy(ROOT / name, folder)

    def add_rows(self, path, code):
        """Add rows to a table, and what stands before the table in `code` before it in the file."""
        before, table, rows = re.fullmatch(r'((?:.*\n)*?)(\w+) = \{\n    \.\.\.\n((?:.*\n)*)\}\n', code).groups()
        text = (self.folder / path).read_text()
        found = re.search(rf'^{table}(?:: .*)? = \{{\n(?:.*\n)*?(?=\}})', text, re.MULTILINE)
        (self.folder / path).write_text(text[: found.start()] + before + found.group() + rows + text[found.end() :])

    def append(self, path, code):
        """Add code to the end of a file, which may be a new one."""
        with open(self.folder / path, 'a') as file:
            file.write(code)

    def run(self, program, *arguments):
        """Run a program in Python in the copy, in a new process."""
        environment = {
            **os.environ,
            'PYTHONPATH': os.pathsep.join(map(str, (self.folder, self.folder / 'tests', self.folder / 'experiments'))),
        }
        command = [sys.executable, '-W', 'ignore', '-c', program, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture()
def project(tmp_path):
    return Project(tmp_path)


def code_of(section, language='python'):
    """The blocks of code of a section."""
    return re.findall(rf'^```{language}\n((?:.*\n)*?)```$', SECTIONS[section], re.MULTILINE)


def file_of(section, code):
    """The last file that the section names before a block of code."""
    return re.findall(r'`([\w/]+\.\w+)`', SECTIONS[section].partition(code)[0])[-1]


# Programs that use what a recipe has made; `passed` runs tests of the copy and says how many there were.
BEGIN = """
import os, sys
import mxnet as mx, numpy as np, pytest
import bmx_melius as bmx

assert bmx.__file__.startswith(os.getcwd())

class Counter:
    passed = 0

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == 'call' and report.passed

def passed(path, selected):
    counter = Counter()
    assert pytest.main(['-q', '-p', 'no:cacheprovider', path, '-k', selected], plugins=[counter]) == 0
    return counter.passed
"""

USE_NETWORK = (
    BEGIN
    + """
import gluoncv, train_imagenet
from bmx_melius.__main__ import main
from bmx_melius.training import options
from model_zoo import get_model, get_model_list

(name,) = sys.argv[1:]
assert name in get_model_list()
assert type(gluoncv.model_zoo.get_model(name)) is type(get_model(name))
assert main(['summary', name]) == 0
assert options.parse(train_imagenet.make_parser, ['--model', name, '--dataset', 'digits', '--save-dir', 'new']).model == name

net = get_model(name, classes=5, clip_threshold=1)
net.initialize(mx.init.Xavier())
x = mx.nd.random.normal(shape=(4, 3, 64, 64))
assert net(x).shape == (4, 5)
assert bmx.summary(net, x.shape).bops > 0
assert bmx.check(net, x).problems == []
net.hybridize()
net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 3, 64, 64), verify=True)
assert bmx.Session('packed')(x.asnumpy()).shape == (4, 5)
assert passed('tests/test_zoo.py', name + ' and thumbnail') == 1
"""
)


def test_a_row_is_a_network_everywhere(project):
    row, *_ = code_of('Adding a network')
    project.add_rows(file_of('Adding a network', row), row)
    project.run(USE_NETWORK, 'meliusnet25')


def test_a_file_is_a_family_of_networks(project):
    _, family, line = code_of('Adding a network')
    project.append(file_of('Adding a network', family), family)
    project.append(file_of('Adding a network', line), line)
    project.run(USE_NETWORK, 'plainnet3')


USE_STUDY = (
    BEGIN
    + """
import run

(name,) = sys.argv[1:]
assert run.main(['--list']) == 0
assert run.main([name, '--dry-run']) == 0
assert passed('tests/test_experiments.py', 'every_command_of_a_study and ' + name) == 2
"""
)


def test_a_file_is_a_study(project):
    (study,) = code_of('Adding a study', 'yaml')
    path = file_of('Adding a study', study)
    project.append(path, study)
    project.run(USE_STUDY, pathlib.Path(path).stem)


USE_PROTOCOL = (
    BEGIN
    + """
import train_imagenet
from bmx_melius.training import options

(name,) = sys.argv[1:]
parsed = options.parse(train_imagenet.make_parser, ['--preset', name, '--model', 'meliusnet22', '--save-dir', 'new'])
assert parsed.num_epochs == 240 and parsed.lr == 0.002
assert passed('tests/test_presets.py', f'values_of_the_paper and {name} or table_of_the_documentation or every_preset_is_checked') == 3
"""
)


def test_a_row_is_a_protocol_once_its_numbers_stand_in_the_documentation_and_in_the_tests(project):
    section = 'Adding a protocol'
    preset, paper = code_of(section)
    (line,) = code_of(section, 'markdown')
    project.add_rows(file_of(section, preset), preset)
    project.add_rows('tests/test_presets.py', paper)
    table = project.folder / 'docs' / 'training.md'
    assert all(f'`{path}`' in SECTIONS[section] for path in ('tests/test_presets.py', 'docs/training.md'))
    table.write_text(re.sub(r'(\n\| `meliusnet59` .*\n)', lambda last: last.group() + line, table.read_text()))
    project.run(USE_PROTOCOL, 'long')
