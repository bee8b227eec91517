"""The README says what is true: its table is what `summary` counts, its Python runs, the files it names exist."""
import re
from pathlib import Path

import mxnet as mx
import pytest

import bmx_melius as bmx
from model_zoo import get_model

ROOT = Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()
ROWS = [[cell.strip() for cell in line.strip('|\n').split('|')] for line in README.splitlines() if line.startswith('| meliusnet')]


def test_table_has_all_networks_of_the_paper():
    assert [row[0] for row in ROWS] == ['meliusnet' + size for size in ('22', '29', '42', '59', 'a', 'b', 'c')]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row[0])
def test_table_is_what_the_summary_counts(row):
    counted = bmx.summary(get_model(row[0]), input_shape=(1, 3, 224, 224))
    assert row[1:5] == [
        f'{counted.bops / 1e9:.3f}', f'{counted.flops / 1e8:.3f}', f'{counted.ops / 1e8:.3f}', f'{counted.size_bytes / 2**20:.2f}'
    ]  # fmt: skip


def test_python_of_the_readme_runs(tmp_path, monkeypatch):
    examples = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples[:2]:
        exec(example, names)
    assert names['logits'].shape == (1, 1000)
    assert (tmp_path / 'meliusnet22-symbol.json').exists()
    names['block'].initialize()
    assert names['block'](mx.nd.ones((1, 8, 4, 4))).shape == (1, 64, 4, 4)


NAMED_FILES = re.findall(r'\]\(([\w./-]+)\)', README) + re.findall(r'`((?:benchmarks|examples)/[\w.]+)`', README)


@pytest.mark.parametrize('path', sorted(set(NAMED_FILES)))
def test_files_the_readme_names_exist(path):
    assert (ROOT / path).exists()
