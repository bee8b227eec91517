"""`bmx-melius tables`: the tables of the paper as printed, beside the counts, and the documents that show them."""

import contextlib
import copy
import functools
import hashlib
import json
import re
from fractions import Fraction

import pytest
from support.paths import DATA, ROOT

from bmx_melius.__main__ import main
from bmx_melius.analysis.summary import summary
from bmx_melius.cli import tables
from bmx_melius.cli.tables import count
from bmx_melius.cli.tables_markdown import to_markdown
from model_zoo import get_model, get_model_list, registry
from model_zoo.listing import TIMES_FILE
from model_zoo.meliusnet import NETWORKS
from model_zoo.published import is_of_imagenet, networks_of, read_published

PUBLISHED = read_published()
ROWS = [(table['number'], index, row) for table in PUBLISHED['tables'] for index, row in enumerate(table['rows'])]
CONTRADICTIONS = {one['id']: one['what'] for one in PUBLISHED['contradictions']}
DIGESTS = json.loads((DATA / 'paper_tables.sha256.json').read_text())  # of the rows as printed, see below

# Column of a table -> count, unit, digits in the text of contradictions.
COUNTED = {'bops_e9': ('bops', 1e9, 3), 'flops_e8': ('flops', 1e8, 3), 'ops_e8': ('ops', 1e8, 3)}
COUNTED.update({column: ('size_bytes', 2**20, 2) for column in ('size_mb', 'model_size')})

# A sum, product or quotient with its result, such as 18.3 / 6.4 + 2.45 = 5.31 and 3 · 6,422,528 = 19,267,584.
NUMBER = r'\d+(?:,\d{3})*(?:\.\d+)?'
EXPRESSION = re.compile(rf'(\(?{NUMBER}(?: [-+/·] \(?{NUMBER}\)?)+) = ({NUMBER})')


@pytest.fixture(scope='module')
def outputs(make_once):
    """The folder of what the command prints with --json and without; both from the same counts, which take seconds."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, 'count', functools.lru_cache(maxsize=None)(count))
            for name, flags in (('json', ['--json']), ('markdown', [])):
                with open(folder / name, 'w', encoding='utf-8') as output, contextlib.redirect_stdout(output):
                    assert main(['tables', *flags]) == 0

    return make_once('tables', make)


@pytest.fixture(scope='module')
def printed(outputs):
    """The output of the command with --json."""
    return json.loads((outputs / 'json').read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def markdown(outputs):
    """The output of the command."""
    return (outputs / 'markdown').read_text(encoding='utf-8')


def find(content, table, index):
    return content['tables'][table - 1]['rows'][index]


def name_of(value):
    return value.get('name') or value.get('network') or value.get('method') or value['architecture'] if isinstance(value, dict) else None


# --- the printed figures --------------------------------------------------------------------------------------------------------------


def test_there_is_a_digest_of_every_row():
    assert [number for number, *_ in DIGESTS] == [number for number, *_ in ROWS]


@pytest.mark.parametrize('position', range(len(DIGESTS)), ids=lambda position: '{} {}'.format(*DIGESTS[position]))
def test_every_row_is_as_printed(position, printed):
    """The digests are SHA-256 of rows as JSON with sorted keys and without spaces, made from a transcript that is not in this project."""
    number, label, digest = DIGESTS[position]
    row = dict(find(printed, number, ROWS[position][1]))
    del row['counted']
    text = json.dumps(row, sort_keys=True, separators=(',', ':'))
    assert hashlib.sha256(text.encode()).hexdigest() == digest, f'table {number}, {label} is not as the paper prints it'


def test_every_printed_figure_is_in_the_markdown(markdown):
    lines = markdown.splitlines()
    for number, _, row in ROWS:
        figures = [figure for part in (row, row.get('small', {}), row.get('large', {})) for figure in part.values()]
        figures = [figure.partition(' (shared')[0] for figure in figures if isinstance(figure, str)]
        figures = [figure for figure in figures if figure != row.get('section') and figure != row.get('footnote')]
        assert any(all(figure in line for figure in figures) for line in lines), (number, figures)
    assert all(f'| **{section}** |' in markdown for section in {row['section'] for _, _, row in ROWS if 'section' in row})


def test_the_best_rows_are_bold_and_contradicted_figures_have_the_number_of_the_contradiction(markdown):
    assert '| TTQ | 2/32 | **66.6** | 5.3MB | 18.1 |' in markdown
    assert re.search(r'\| \*\*67\.0\*\* \| 9\.2MB \[\d+\] \| 2\.68 \| \*\*70\.5\*\* \| 15\.3MB \[\d+\] \|', markdown)
    assert '| 5.25 [1] |' in markdown and '- [1] **MeliusNet59, operations**' in markdown


@pytest.mark.parametrize('number, index, row', ROWS, ids=name_of)
def test_differences_of_accuracies_are_those_of_the_rows(number, index, row):
    def size(other):
        return float(re.search(r'[\d.]+', other['model_size'])[0])

    bases = {  # of the closest size, and of the same network
        'delta': lambda other: abs(size(other) - size(row)),
        'delta_of_method': lambda other: other['network'] != row['network'],
    }
    for column, distance in bases.items():
        figure = row.get(column) or '(base)'
        if figure != '(base)':
            base = min((other for table, _, other in ROWS if table == number and other[column] == '(base)'), key=distance)
            difference = Fraction(row['top1_percent']) - Fraction(base['top1_percent'])
            if column in row.get('contradictions', {}):
                assert difference != Fraction(figure)
                assert f'= {float(difference):.1f}' in CONTRADICTIONS[row['contradictions'][column]]
            else:
                assert difference == Fraction(figure.replace('+-', '+'))


# --- the counts -----------------------------------------------------------------------------------------------------------------------


def figures_of(row, counted):
    """Yield column, printed figure and count of a row, for columns that are counted and networks that are in the zoo."""
    for size, part in {'': row, 'small.': row.get('small', {}), 'large.': row.get('large', {})}.items():
        counts = counted.get(size.strip('.')) if size or 'small' in counted else counted
        for column in COUNTED.keys() & part.keys():
            if part[column] and counts:
                yield size + column, re.search(r'[\d.]+', part[column])[0], counts[COUNTED[column][0]] / COUNTED[column][1]


@pytest.mark.parametrize('number, index, row', ROWS, ids=name_of)
def test_counts_agree_with_the_printed_figures_or_are_in_a_contradiction(number, index, row, printed):
    for column, figure, number_counted in figures_of(row, find(printed, number, index)['counted'] or {}):
        unit = 10.0 ** -len(figure.partition('.')[2])
        contradiction = CONTRADICTIONS.get(row.get('contradictions', {}).get(column))
        if contradiction is None:
            assert abs(number_counted - float(figure)) <= unit, f'{column}: {figure}, {number_counted}'
        else:
            digits = COUNTED[column.rpartition('.')[2]][2]
            text = f'{number_counted:.{digits}f}'
            ranges = re.findall(rf'({NUMBER}) to ({NUMBER})', contradiction)
            within = any(float(low) <= float(text) <= float(high) for low, high in ranges)
            assert text in contradiction or within, f'{column}: the contradiction has no {text}'


@pytest.mark.parametrize('row', PUBLISHED['logs']['rows'], ids=lambda row: ' '.join(row['get_model'].values()))
def test_counts_are_those_of_the_training_logs(row):
    counted = count(**row['get_model'])
    assert counted['ops'] / 1e8 == pytest.approx(float(row['ops_e8']), abs=0.0051)
    assert counted['size_bytes'] / 2**20 == pytest.approx(float(row['size_mb']), abs=0.0051)


@pytest.mark.parametrize('index', range(7))
def test_networks_of_table_1_have_the_printed_blocks_widths_and_groups(index):
    row = PUBLISHED['tables'][0]['rows'][index]
    architecture, channels, reductions = NETWORKS[row['get_model']['name']].architecture, 64, []
    assert (list(architecture.block_numbers), architecture.groups) == (row['block_numbers'], row['downsampling_groups'])
    for blocks, width in zip(architecture.block_numbers, architecture.transitions):
        reductions.append(f'{width}/{channels + 64 * blocks}')
        channels = width
    column = 'channel_reduction_in_transitions'
    if column not in row.get('contradictions', {}):
        assert reductions == row[column]
    else:
        assert [name for name, here in zip(row[column], reductions) if name != here] == ['224/704']
        assert '224/704' in CONTRADICTIONS['meliusnetc transition'] and reductions[-1] in CONTRADICTIONS['meliusnetc transition']


def test_the_printed_width_of_meliusnet_c_does_not_give_its_printed_figures():
    net = get_model('meliusnet_flex', block_numbers=(3, 5, 10, 6), transitions=(128, 192, 224), groups=4)
    counted = summary(net)
    figures = (counted.bops / 1e9, counted.flops / 1e8, counted.ops / 1e8, counted.size_bytes / 2**20)
    text = '{:.3f} · 10⁹ BOPs, {:.3f} · 10⁸ FLOPs, {:.3f} · 10⁸ OPs and {:.2f} MB'
    assert f'would count {text.format(*figures)}' in CONTRADICTIONS['meliusnetc transition']
    printed = count('meliusnetc')
    figures = (printed['bops'] / 1e9, printed['flops'] / 1e8, printed['ops'] / 1e8, printed['size_bytes'] / 2**20)
    assert text.format(*figures) in CONTRADICTIONS['meliusnetc transition']


def test_only_the_groups_of_table_1_give_its_operations():
    counted = []
    for name, groups in (('meliusneta', 2), ('meliusnetb', 4)):
        table = NETWORKS[name].architecture
        net = get_model('meliusnet_flex', block_numbers=table.block_numbers, transitions=table.transitions, groups=groups)
        counted += [count(name)['ops'] / 1e8, summary(net).ops / 1e8]
    right, wrong = counted[::2], counted[1::2]
    assert '{:.3f} and {:.3f} with them, {:.3f} and {:.3f} with those of the text'.format(*right, *wrong) in CONTRADICTIONS['groups']


def test_studies_of_the_supplement_and_of_32_bits_have_the_large_convolution():
    def ops(stem):
        return tuple(count(name, initial_layers=stem)['ops'] / 1e8 for name in ('meliusnet22', 'naivenet17'))

    text = 'count {:.3f} and {:.3f} · 10⁸ OPs, with the grouped stem {:.3f} and {:.3f}'
    assert text.format(*ops('imagenet'), *ops('grouped_stem')) in CONTRADICTIONS['naive study']

    def sizes(stem):
        return ' and '.join(f'{count(f"{n}_32bit", initial_layers=stem)["size_bytes"] / 2**20:.2f} MB' for n in ('meliusnet', 'densenet'))

    assert (
        f'text gives {sizes("imagenet")}' in CONTRADICTIONS['32-bit study']
        and f'are {sizes("grouped_stem")}' in CONTRADICTIONS['32-bit study']
    )


def test_stems_have_the_weights_and_operations_of_the_contradiction():
    stems = [
        [layer for layer in summary(get_model('resnet_e18', initial_layers=stem)).layers if layer.macs and 'conv' in layer.operator.lower()]
        for stem in ('imagenet', 'grouped_stem')
    ]
    large, grouped = stems[0][:1], stems[1][:3]
    text = CONTRADICTIONS['stem']
    assert f'= {large[0].parameters:,} weights' in text and f'= {sum(layer.parameters for layer in grouped):,}.' in text
    assert f'{sum(layer.macs for layer in grouped):,} / {large[0].macs:,}' in text
    downsampling = [layer for layer in stems[0] if layer.kind == '1x1 convolution']
    assert [f'{layer.macs:,}' for layer in downsampling] == 3 * ['6,422,528']


def test_arithmetic_of_documents_is_right():
    document = (ROOT / 'docs' / 'tables.md').read_text(encoding='utf-8')
    for text in (*CONTRADICTIONS.values(), document):
        expressions = EXPRESSION.findall(text)
        for expression, result in expressions:
            exact = re.sub(NUMBER, lambda match: f'Fraction("{match[0].replace(",", "")}")', expression).replace('·', '*')
            value = eval(exact)  # of numbers and operators only, because the pattern matched
            digits = len(result.partition('.')[2])
            assert round(value, digits) == Fraction(result.replace(',', '')), f'{expression} = {float(value)}, not {result}'
        if text is not document:
            assert len(expressions) == text.count(' = '), 'the test does not understand an expression'
    assert len(EXPRESSION.findall(document)) > 30


# --- the command ----------------------------------------------------------------------------------------------------------------------


def test_every_network_of_a_fixed_size_is_in_a_table(printed):
    rows = [row for table in (*printed['tables'], printed['logs']) for row in table['rows']] + printed['others']
    counted = [one for row in rows for one in ([row['counted']] if 'small' not in (row['counted'] or ()) else row['counted'].values())]
    assert {one['network'] for one in counted if one} >= set(filter(is_of_imagenet, get_model_list()))


def test_networks_are_counted_as_soon_as_they_are_in_the_zoo(monkeypatch):
    assert count('no_such_net', initial_layers='imagenet') is None
    monkeypatch.setitem(registry._NETWORKS, 'nosuchnet', registry._NETWORKS['meliusneta'])
    assert count('no_such_net', initial_layers='grouped_stem')['flops'] == 86729216


def test_missing_networks_are_dashes(monkeypatch):
    content = copy.deepcopy({**PUBLISHED, 'others': [], 'contradictions': [], 'logs': {**PUBLISHED['logs'], 'rows': []}})
    content['tables'] = content['tables'][2:3]
    for row in content['tables'][0]['rows']:
        row['counted'] = {'small': None, 'large': None}
        row.pop('contradictions', None)
    assert '| BNN | 1/1 | 42.2 | ~4MB | 1.57 | - | ~5.1MB | - | - | - | - | - |' in to_markdown(content)


def test_every_row_names_networks_that_differ_in_their_size_class():
    assert all(set(network) <= {'name', 'initial_layers', 'quantized_shortcuts'} for _, _, row in ROWS for network in networks_of(row))
    pairs = [[network['name'] for network in networks_of(row)] for number, _, row in ROWS if number == 3]
    assert all(len(pair) == 2 and pair[0] != pair[1] for pair in pairs)


def test_one_table_can_be_selected_with_its_contradictions(capsys, monkeypatch):
    monkeypatch.setattr(tables, 'count', lambda name, **_: {'network': name})
    assert main(['tables', '--table', '4', '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    (table,) = content['tables']
    assert table['number'] == 4 and content['logs']['rows'] == [] and content['others'] == []
    assert all(4 in one['tables'] for one in content['contradictions']) and len(content['contradictions']) > 5
    (cell,) = (one['figures'] for one in content['contradictions'] if one['id'] == 'mobilenet')
    assert cell == [{'table': 4, 'row': 8, 'column': 'ops_e8'}]
    assert table['rows'][3]['counted'] == {'network': 'mobilenet0.5'}


def test_the_networks_of_gluoncv_are_counted_without_a_note(caplog):
    assert count('resnet18_v1')['bops'] == 0 and not caplog.messages


def test_documents_show_what_the_command_prints(markdown):
    document = (ROOT / 'docs' / 'tables.md').read_text(encoding='utf-8')
    assert document.endswith(f'\n{markdown}'), (
        'replace the end of docs/tables.md, from its first table on, by the output of bmx-melius tables'
    )


def test_the_table_of_networks_in_the_readme_has_published_accuracies_our_counts_and_measured_times(printed):
    rows = [row for table in (1, 4) for row in printed['tables'][table - 1]['rows']]
    timed = next(iter(json.loads(TIMES_FILE.read_text(encoding='utf-8')).values()))['milliseconds']
    measured = {name: f'{times["least"]:.2f}' for name, times in timed.items()}
    (mobilenets,) = re.findall(
        r'^\| MXNet mobilenet0.5, 0.75, 1.0, fused \| (.*?) \|',
        (ROOT / 'benchmarks' / 'README.md').read_text(encoding='utf-8'),
        re.MULTILINE,
    )
    measured['mobilenet1.0'] = mobilenets.split(', ')[2]
    cells = re.findall(
        r'^\| `(\w+[\d.]*)` \| (.*) \| (.*) \| (.*) \| (.*) \|$', (ROOT / 'README.md').read_text(encoding='utf-8'), re.MULTILINE
    )
    assert [name for name, *_ in cells] == [*(f'meliusnet{one}' for one in ('c', 'a', 'b', 22, 29, 42, 59)), 'mobilenet1.0']
    for name, accuracy, ops, size, milliseconds in cells:
        row = next(row for row in rows if row['counted'] and row['counted']['network'] == name)
        top_5 = f' ({row["top5_percent"]})' if 'top5_percent' in row else ''
        assert accuracy == row['top1_percent'] + top_5
        assert (ops, size) == (f'{row["counted"]["ops"] / 1e8:.2f}', f'{row["counted"]["size_bytes"] / 2**20:.1f}')
        assert milliseconds == measured[name]


def test_the_first_table_of_the_readme_has_measured_times_our_counts_and_published_accuracies(printed):
    rows = {row['counted']['network']: row for table in (1, 4) for row in printed['tables'][table - 1]['rows'] if row['counted']}
    text = (ROOT / 'benchmarks' / 'README.md').read_text('utf-8')
    (section,) = re.findall(r'^### Intel Xeon \(Emerald Rapids\), AVX-512 without AMX.*?(?=^### )', text, re.MULTILINE | re.DOTALL)
    cells = [cell for line in re.findall(r'^\| (.*) \|$', section, re.MULTILINE) for cell in line.replace('*', '').split(' | ')]
    measured = {label: figures.split(', ') for label, figures in zip(cells, cells[1:])}
    int8 = cells[cells.index('the same, int8') + 1].split(', ')  # of ONNX Runtime, whose rows come before LiteRT's
    runtime = measured['ONNX Runtime mobilenet 0.5, 0.75, 1.0']
    expected = [  # network, who runs it, milliseconds
        ('MeliusNet22', 'bmx-melius, packed', measured['meliusnet22'][0]),
        ('', 'MXNet, fastest form in floating point', measured['MXNet float, thresholds folded'][0]),
        ('', 'MXNet, as exported', measured['MXNet float, as exported'][0]),
        ('', 'Larq Compute Engine, best of its settings', measured['Larq Compute Engine, default, best'][1]),
        ('MobileNet 0.5', 'MXNet, fused operators', measured['MXNet mobilenet0.5, fused'][1]),
        ('', 'ONNX Runtime', runtime[0]),
        ('MobileNet 1.0', 'MXNet, fused operators', measured['MXNet mobilenet1.0, fused'][1]),
        ('', 'ONNX Runtime', runtime[2]),
        ('', 'ONNX Runtime, int8', int8[2]),
    ]
    text = (ROOT / 'README.md').read_text(encoding='utf-8').partition('## Is a binary network what you need?')[2].partition('\n## ')[0]
    shown = [[cell.strip() for cell in line.replace('*', '').split('|')[1:-1]] for line in re.findall(r'^\|.*\|$', text, re.MULTILINE)[2:]]
    assert [tuple(row[:3]) for row in shown] == expected
    assert [tuple(row[3:]) for row in shown if row[0]] == [
        (f'{rows[name]["counted"]["size_bytes"] / 2**20:.1f}', rows[name]['top1_percent'])
        for name in ('meliusnet22', 'mobilenet0.5', 'mobilenet1.0')
    ]
    assert {tuple(row[3:]) for row in shown if not row[0]} == {('', '')}
