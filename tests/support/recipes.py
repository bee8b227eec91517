"""A copy of the project, in which tests follow the recipes of CONTRIBUTING.md: its code is put where the text says."""

import os
import re
import shutil
import subprocess
import sys

from support.paths import ROOT

COMPILED = ('bmx_melius', 'model_zoo', 'tools', 'tests', 'setup.py', 'README.md')
COPIED = ('bmx_melius', 'model_zoo', 'experiments', 'docs', 'tests', 'tools', 'pyproject.toml', 'train_imagenet.py')
SECTIONS = dict(re.findall(r'^## (.*)\n((?:(?!## ).*\n)*)', (ROOT / 'CONTRIBUTING.md').read_text(), re.MULTILINE))


class Project:
    """A copy of the project, in which a contributor works."""

    def __init__(self, folder, names, unneeded):
        self.folder = folder
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.png', *unneeded))
            else:
                shutil.copy(ROOT / name, folder)

    def add_rows(self, path, code):
        """Add rows to a table, and what stands before the table in `code` before it in the file."""
        before, table, rows = re.fullmatch(r'((?:.*\n)*?)(\w+) = \{\n    \.\.\.\n((?:.*\n)*)\}\n', code).groups()
        text = (self.folder / path).read_text()
        found = re.search(rf'^{table}(?:: .*)? = \{{.*\n(?:.*\n)*?(?=\}})', text, re.MULTILINE)
        (self.folder / path).write_text(text[: found.start()] + before + found.group() + rows + text[found.end() :])

    def append(self, path, code):
        """Add code to the end of a file, which may be a new one."""
        with open(self.folder / path, 'a') as file:
            file.write(code)

    def file(self, name):
        """The path of the only file of this name."""
        (path,) = self.folder.rglob(name)
        return path

    def make_operations(self):
        """Write what is made from the table of operations."""
        self.run('import make_operations; make_operations.main()', PYTHONPATH=f'{self.folder}{os.pathsep}{self.folder / "tools"}')

    def replace(self, name, old, new):
        """Replace the only occurrence of `old`, a regular expression, in the only file of this name."""
        text, found = re.subn(old, new, self.file(name).read_text(), flags=re.MULTILINE)
        assert found == 1, f'{name} has {found} places like {old}'
        self.file(name).write_text(text)

    def run(self, program, *arguments, **environment):
        """Run a program in Python in the copy, in a new process; return what it printed."""
        path = os.pathsep.join(str(self.folder / name) for name in ('', 'tests', 'experiments'))
        command = [sys.executable, '-W', 'ignore', '-c', program, *map(str, arguments)]
        environment = {**os.environ, 'PYTHONPATH': path, **environment}
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def code_of(section, language='python'):
    """The blocks of code of a section."""
    return re.findall(rf'^```{language}\n((?:.*\n)*?)```$', SECTIONS[section], re.MULTILINE)


def file_of(section, code):
    """The last file that the section names before a block of code."""
    return re.findall(r'`([\w/]+\.\w+)`', SECTIONS[section].partition(code)[0])[-1]


def compile_without_optimization(project):
    """Compile the engine in the copy in a third of the time."""
    compiler = project.folder / 'bin' / 'g++'
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -O0\n')
    compiler.chmod(0o755)
    command = [sys.executable, '-W', 'ignore', 'setup.py', '--quiet', 'build_ext', '--inplace']
    subprocess.run(command, cwd=project.folder, env={**os.environ, 'CXX': str(compiler)}, check=True)


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

def passed(selected, *paths):
    counter = Counter()
    assert pytest.main(['-q', '-p', 'no:cacheprovider', *paths, '-k', selected], plugins=[counter]) == 0
    return counter.passed
"""
