"""Markdown of ``bmx-melius tables``."""

import re

# Cells of the tables of the paper, in the order of their columns: names of figures in braces.
_CELLS = {
    1: (
        '{name}{name_suffix} ({block_numbers})',
        '{channel_reduction_in_transitions}',
        '{bops_e9}',
        '{flops_e8}',
        '{ops_e8}',
        '{size_mb}',
        '{ops_and_size_similar_to}',
        '{top1_percent} ({top5_percent})',
    ),
    2: (
        '{model_size}',
        '{network}',
        '{training_procedure}',
        '{grouped_stem}',
        '{ops_e8}',
        '{top1_percent}',
        '{delta}',
        '{delta_of_method}',
    ),
    3: (
        '{method}',
        '{bitwidth_w_a}',
        *(f'{{{size}.{figure}}}' for size in ('small', 'large') for figure in ('top1_percent', 'model_size', 'ops_e8')),
    ),
    4: ('{model_size}', '{architecture}', '{bitwidth_w_a}', '{ops_e8}', '{top1_percent}', '{delta}'),
}
_LOG_CELLS = ('{ops_e8}', '{size_mb}', '{top1_percent} ({top5_percent})')
_LOG_HEAD = ('OPs (1e8)', 'size (MB)', 'top-1 (top-5) accuracy')
_NETWORK = 'network here'
_COUNTED = 'counted: BOPs (10⁹) / FLOPs (10⁸) / OPs (10⁸) / MB'


def to_markdown(content):
    """Return tables and contradictions in Markdown, from the content of ``published.json`` with counts in each row."""
    numbers = {one['id']: one['number'] for one in content['contradictions']}
    parts = [_paper_table(table, numbers) for table in content['tables']]
    if content['logs']['rows']:
        rows = [[*_counted(row['counted']), *_cells(row, _LOG_CELLS, numbers)] for row in content['logs']['rows']]
        table = _table((_NETWORK, _COUNTED, *_LOG_HEAD), rows)
        parts.append(f"### The authors' training logs\n\n{table}\n\nPublished: {content['logs']['source']}.")
    if content['others']:
        rows = [_counted(row['counted']) for row in content['others']]
        parts.append(f'### Other networks of the zoo\n\n{_table((_NETWORK, _COUNTED), rows)}')
    if content['contradictions']:
        listed = (f'- [{one["number"]}] **{one["title"]}** ({one["where"]}). {one["what"]}' for one in content['contradictions'])
        parts.append('### Contradictions and open points\n\n' + '\n'.join(listed))
    return '\n\n'.join(parts)


def _paper_table(table, numbers):
    """Return a table of the paper, with its title and notes. A row precedes each section; columns of counts follow the paper's columns."""
    cells, section, lines = _CELLS[table['number']], None, []
    sizes = list(table['rows'][0]['counted'])
    head = [*table['columns'], *(f'{size}: {heading}' if size else heading for size in sizes for heading in (_NETWORK, _COUNTED))]
    for row in table['rows']:
        if row.get('section') != section:
            section = row['section']
            lines.append([f'**{section}**'] + [''] * (len(head) - 1))
        lines.append([*_cells(row, cells, numbers), *_counted(row['counted'])])
    return f'### Table {table["number"]}: {table["about"]}\n\n{_table(head, lines)}\n\n{"; ".join(table["notes"])}.'


def _cells(row, templates, numbers):
    """Return the texts of the printed columns of a row. A number in brackets refers to a contradiction; the best accuracies are bold."""
    bold = row.get('bold') or ()
    bold = {'top1_percent'} if bold is True else {f'{size}.top1_percent' for size in bold}
    contradictions = row.get('contradictions', {})

    def text(match):
        figure = row
        for key in match[1].split('.'):
            figure = figure[key]
        text = _text(figure) if match[1] != 'name_suffix' else figure or ''
        text = f'**{text}**' if match[1] in bold else text
        return f'{text} [{numbers[contradictions[match[1]]]}]' if match[1] in contradictions else text

    return [re.sub(r'\{([\w.]+)\}', text, template) for template in templates]


def _text(figure):
    if isinstance(figure, bool):
        return 'yes' if figure else 'no'
    if isinstance(figure, list):
        return ', '.join(figure) if isinstance(figure[0], str) else '-'.join(map(str, figure))
    return figure.partition(' (shared cell')[0] if figure else '-'


def _counted(by_size):
    """Return the cells of the counted networks of a row: for each size class the network and its counts, or dashes."""
    cells = []
    for counted in by_size.values():
        if counted is None:
            cells += ['-', '-']
            continue
        stem = f', {counted["initial_layers"]}' if 'initial_layers' in counted else ''
        figures = counted['bops'] / 1e9, counted['flops'] / 1e8, counted['ops'] / 1e8
        size = f'{counted["size_bytes"] / 2**20:.2f}'
        cells += [f'`{counted["network"]}`{stem}', ' / '.join([*(f'{figure:.3f}' for figure in figures), size])]
    return cells


def _table(head, rows):
    lines = ['|' + '|'.join(f' {cell} ' if cell else ' ' for cell in line) + '|' for line in (head, *rows)]
    return '\n'.join([lines[0], '|' + '-|' * len(head), *lines[1:]])
