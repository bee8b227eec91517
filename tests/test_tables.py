"""`bmx-melius tables`: published figures beside counted ones, and the documents that show them."""

import json
import re
from pathlib import Path

import pytest

from bmx_melius.__main__ import main
from bmx_melius.analysis.summary import summary
from bmx_melius.cli.tables import count, to_markdown
from model_zoo import get_model, get_model_list
from model_zoo.published import TABLES

ROOT = Path(__file__).parent.parent
ROWS = [row for table in TABLES for row in table.rows]
MISPRINTED = ['meliusnet59']  # docs/tables.md, Where the paper contradicts itself
CUT_OFF = 0.01  # of 10^9 or 10^8: several printed figures are not rounded


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row.network}-{row.initial_layers}')
def test_counts_equal_the_published_figures(row):
    counted = count(row)
    for published, number in ((row.bops, counted['bops'] / 1e9), (row.flops, counted['flops'] / 1e8), (row.ops, counted['ops'] / 1e8)):
        if published and not (published == row.ops and row.network in MISPRINTED):
            tolerance = CUT_OFF if len(published.partition('.')[2]) > 1 else 0.05
            tolerance += 0.01 if row.network == 'mobilenet1.0' else 0  # with its last layer
            assert number == pytest.approx(float(published), abs=tolerance)
    if row.size:
        assert counted['size_bytes'] / 2**20 == pytest.approx(float(row.size), abs=0.06 if len(row.size.partition('.')[2]) == 1 else 0.01)


def test_the_printed_width_of_meliusnet_c_does_not_give_its_printed_figures():
    net = get_model('meliusnet_flex', block_numbers=(3, 5, 10, 6), transitions=(128, 192, 224), groups=4)
    counted = summary(net, (1, 3, 224, 224))
    figures = [f'{counted.bops / 1e9:.3f}', f'{counted.ops / 1e8:.3f}', f'{counted.size_bytes / 2**20:.2f}']
    assert figures == ['4.332', '1.492', '4.11']
    (contradiction,) = re.findall(r'MeliusNetC, third transition.*?(?=^- )', (ROOT / 'docs' / 'tables.md').read_text(), re.S | re.M)
    assert all(figure in contradiction for figure in figures)


@pytest.mark.parametrize('table', TABLES, ids=lambda table: table.title)
def test_documents_contain_the_output_of_the_command(table):
    text = to_markdown(table)
    assert text in (ROOT / 'docs' / 'tables.md').read_text(), 'bmx-melius tables prints the text anew'
    if table is TABLES[0]:
        lines = [line for line in text.splitlines() if line.startswith('|')]
        assert '\n'.join(lines) in (ROOT / 'README.md').read_text()


def test_every_network_of_a_fixed_size_except_that_of_larq_zoo_is_in_a_table():
    assert {row.network for row in ROWS} >= set(get_model_list()) - {'meliusnet_flex', 'binary_densenet37_dilated'}


def test_json_output_of_tables_can_be_parsed(capsys, monkeypatch):
    monkeypatch.setattr('model_zoo.published.TABLES', TABLES[2:3])
    assert main(['tables', '--json']) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert table['source'] == TABLES[2].source
    assert [row['published']['network'] for row in table['rows']] == ['mobilenet0.5', 'mobilenet0.75', 'mobilenet1.0']
    assert table['rows'][0]['counted']['flops'] == 148985088
