"""The documentation site: pages, links, API reference, figures, tables and the tutorial. The site itself is built by `make docs`."""

import importlib
import io
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from support.paths import ROOT

import bmx_melius
import model_zoo
from bmx_melius.__main__ import COMMANDS
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import VERSION, words_of

DOCS = ROOT / 'docs'
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob('*.md'))
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for pattern in ('*.md', 'docs/**/*.md', 'benchmarks/*.md') for path in ROOT.glob(pattern)
)
NOTEBOOKS = sorted(path.name for path in (ROOT / 'examples').glob('*.ipynb'))
FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LINK = re.compile(r'\]\(([^()\s]+)\)')
# Pages that tools/site_hooks.py makes from other files of the repository.
MADE = {
    'index.md',
    'contributing.md',
    'changelog.md',
    'security.md',
    'benchmark-results.md',
    *(f'notebooks/{name[:-6]}.md' for name in NOTEBOOKS),
}


def text_of(name):
    """Return the text of a document without its blocks of code."""
    return FENCE.sub('', (ROOT / name).read_text(encoding='utf-8'))


def anchors_of(name):
    """Return the anchors of the headings of a document that Git hosts and MkDocs make alike: without repeated dashes."""
    headings = re.findall(r'^#+ (.*)$', text_of(name), re.MULTILINE)
    plain = [re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading).strip().lower() for heading in headings]
    anchors = [re.sub(r'\s', '-', re.sub(r'[^\w\s-]', '', heading)) for heading in plain]
    return [anchor for anchor in anchors if '--' not in anchor]


@pytest.mark.parametrize('name', DOCUMENTS)
def test_links_and_anchors_of_documents_resolve(name):
    wrong = []
    for link in LINK.findall(text_of(name)):
        path, _, anchor = link.partition('#')
        if ':' in path:
            continue
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or anchor and anchor not in anchors_of(target.resolve().relative_to(ROOT.resolve())):
            wrong.append(link)
    assert wrong == []


GENERAL = r'\[(?:[\w/-]+\.md|above|below|details?|figures?|guide|here|implementation|links?|page|results?|this|usage)\]\('


@pytest.mark.parametrize('name', DOCUMENTS)
def test_links_are_named_by_what_they_lead_to(name):
    """Not by the file, and not by a word that fits every link."""
    assert re.findall(GENERAL, text_of(name)) == []


@pytest.mark.parametrize('name', DOCUMENTS)
def test_comments_stand_above_commands(name):
    """Behind them they wrap into the next line of the site."""
    blocks = [code for language, code in FENCE.findall((ROOT / name).read_text(encoding='utf-8')) if language in ('', 'sh', 'bash')]
    assert [line for block in blocks for line in block.splitlines() if re.match(r'[^#\n]*\S\s+# ', line)] == []


FOLDERS = ('bmx_melius', 'csrc', 'deployment', 'training', 'model_zoo', 'examples', 'benchmarks', 'experiments', 'tests', 'tools')
PATH = re.compile(rf'`((?:{"|".join(FOLDERS)})/[\w./]*|[\w./]+/\w+\.(?:py|cc|h|md|yaml))`')
# What the recipes of CONTRIBUTING.md create (test_contributing.py follows them), and a file of MXNet.
ELSEWHERE = ['model_zoo/plainnet.py', 'experiments/activation_bits.yaml', 'mxnet/tools/launch.py']


@pytest.mark.parametrize('name', DOCUMENTS)
def test_files_that_documents_name_exist(name):
    named = [path for path in PATH.findall((ROOT / name).read_text()) if 'NAME' not in path and path not in ELSEWHERE]
    assert [path for path in named if not any((ROOT / folder / path).exists() for folder in ('', 'bmx_melius'))] == []


@pytest.mark.parametrize('name', DOCUMENTS)
def test_headings_and_lists_of_documents_are_those_of_the_site(name):
    """Git hosts read them in more forms than Python-Markdown, which makes text of some."""
    text = text_of(name)
    assert re.findall(r'\n[^\n]+\n(#+ .*)', text) == [], 'a heading without an empty line before it'
    assert re.findall(r'\n\n( {1,3}[^ \n].*)', text) == [], 'a paragraph or table of a list must be indented by 4'


def nav_pages(entry):
    if isinstance(entry, str):
        return [entry]
    return [page for child in (entry.values() if isinstance(entry, dict) else entry) for page in nav_pages(child)]


def test_each_page_is_in_the_navigation_once():
    pages = nav_pages(yaml.safe_load((ROOT / 'mkdocs.yml').read_text())['nav'])
    assert sorted(pages) == sorted({*PAGES, *MADE})


def documented():
    return re.findall(r'^::: (\S+)$', '\n'.join((DOCS / page).read_text() for page in PAGES), re.MULTILINE)


def test_each_public_name_is_in_the_api_reference():
    public = {f'{package.__name__}.{name}' for package in (bmx_melius, model_zoo) for name in package.__all__}
    methods = {f'bmx_melius.nn.methods.{path.stem}' for path in (ROOT / 'bmx_melius' / 'nn' / 'methods').glob('[a-z]*.py')}
    assert (public | methods) - {'bmx_melius.__version__'} <= set(documented())


@pytest.mark.parametrize('name', documented())
def test_each_name_of_the_api_reference_exists_and_has_a_docstring(name):
    try:
        value = importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition('.')
        value = getattr(importlib.import_module(module), attribute)
    assert value.__doc__


def test_each_command_has_its_help_text_in_the_reference():
    shown = re.findall(r'^<!-- help: bmx-melius (\S+) -->$', (DOCS / 'command-line.md').read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(command.replace('_', '-') for command in COMMANDS)


def test_plots_show_the_present_figures(monkeypatch):
    """They contain published accuracies and measured times; `python tools/site_plots.py` draws them again."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    site_plots = importlib.import_module('site_plots')
    for name in site_plots.PLOTS:
        file = io.StringIO()
        site_plots.draw(name, file)
        assert file.getvalue() == (site_plots.FOLDER / name).read_text(encoding='utf-8')


def test_both_forms_of_the_flowchart_have_the_same_texts():
    wide, narrow = (
        sorted(re.findall(r'<text [^>]*>(.*?)</text>', (DOCS / 'figures' / name).read_text(encoding='utf-8')))
        for name in ('targets.svg', 'targets-narrow.svg')
    )
    assert wide == narrow and len(wide) > 40


# --- the packed format ----------------------------------------------------------------------------------------------------------------

FORMAT = (DOCS / 'internals' / 'packed-format.md').read_text()


def test_the_page_names_the_latest_version():
    assert f'version {VERSION} of the format' in FORMAT.replace('\n', ' ')


def test_the_example_of_the_format_is_a_program():
    (block,) = re.findall(r'^```text\n(.*?)^```$', FORMAT, re.MULTILINE | re.DOTALL)
    numbers = [int(word, 0) for word in block.split()]
    program = Program.from_words(words_of([number - (1 << 32) if number >= 1 << 31 else number for number in numbers]))
    threshold, convolution = program.operations
    assert (threshold.name, convolution.name) == ('threshold', 'binary_conv')
    assert convolution.arrays['weight'].reshape(2, 3).tolist() == [[False, True, False], [True, False, False]]


# --- notebooks and tutorial -----------------------------------------------------------------------------------------------------------


@pytest.fixture()
def commands(tmp_path):
    """Return the environment in which `python` and `bmx-melius` belong to this project."""
    for name, arguments in (('python', ''), ('bmx-melius', '-m bmx_melius')):
        program = tmp_path / 'bin' / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore {arguments} "$@"\n')
        program.chmod(0o755)
    return {**os.environ, 'PATH': f'{tmp_path / "bin"}:{os.environ["PATH"]}', 'PYTHONPATH': str(ROOT), 'MPLBACKEND': 'Agg'}


@pytest.mark.long
@pytest.mark.parametrize('name', NOTEBOOKS)
def test_notebooks_run_from_top_to_bottom(name, tmp_path, commands):
    """Their cells contain Python only, so that they run without Jupyter."""
    cells = json.loads((ROOT / 'examples' / name).read_text())['cells']
    (tmp_path / 'cells.py').write_text('\n\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code'))
    done = subprocess.run(['python', tmp_path / 'cells.py'], cwd=ROOT / 'examples', env=commands, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('name', NOTEBOOKS)
def test_notebooks_are_stored_with_the_outputs_of_a_run_from_top_to_bottom(name):
    cells = [cell for cell in json.loads((ROOT / 'examples' / name).read_text())['cells'] if cell['cell_type'] == 'code']
    assert [cell['execution_count'] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell['outputs']]
    assert outputs and not [output for output in outputs if output['output_type'] == 'error' or output.get('name') == 'stderr']
    drawing = [cell for cell in cells if 'plt.show()' in ''.join(cell['source'])]
    assert all('image/png' in output['data'] for cell in drawing for output in cell['outputs'])


@pytest.mark.long
def test_commands_of_the_tutorial_run_from_top_to_bottom(tmp_path, commands):
    ran = []
    for language, code in FENCE.findall((DOCS / 'tutorial.md').read_text()):
        if language == 'python':
            (tmp_path / 'lines.py').write_text(code)
            lines = ['python lines.py']
        else:
            lines = [line for line in code.splitlines() if language == 'sh' and not line.startswith('pip install')]
        for line in lines:
            done = subprocess.run(line, shell=True, cwd=tmp_path, env=commands, capture_output=True, text=True)
            assert done.returncode == 0, f'{line}\n{done.stdout}{done.stderr}'
            ran.append((line, done.stdout))
    accuracy = float(ran[-1][1])
    assert accuracy > 0.95
    assert [line.split()[1] for line, _ in ran if line.startswith('bmx-melius')] == [
        'info', 'train', 'train', 'summary', 'evaluate', 'predict', 'convert', 'evaluate', 'bench',
    ]  # fmt: skip


def test_the_map_of_contributing_has_every_folder_of_the_project():
    lines = (ROOT / 'CONTRIBUTING.md').read_text().split('## Layout')[1].split('```')[1].splitlines()
    mapped, parents = set(), {}
    for line in lines:
        entry = re.match(r'((?:│   |├── |└── )*)(\S+)/ ', line)
        if entry:
            depth = len(entry[1]) // 4
            parents[depth] = entry[2]
            mapped.add('/'.join(parents[level] for level in range(depth + 1)))
    tracked = subprocess.run(['git', 'ls-files'], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    folders = {'/'.join(name.split('/')[:depth]) for name in tracked for depth in (1, 2, 3) if name.count('/') >= depth}
    inner = {'bmx_melius/bench/peers', 'bmx_melius/deployment/convert/rules'}  # described in the line of their folder
    expected = {folder for folder in folders if folder.startswith('bmx_melius') or '/' not in folder}
    assert expected - inner - {'.ci', '.github'} == mapped
