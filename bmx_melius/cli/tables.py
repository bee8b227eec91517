"""``bmx-melius tables``: published figures of the networks compared with the counts of this project."""

import json

from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius tables                 # all tables, as Markdown
  bmx-melius tables --json

A multiply-accumulate of a convolution is one operation; OPs = BOPs / 64 + FLOPs. A binary weight counts one bit; 1 MB is 2^20 bytes.
Accuracies are the published ones: this project has not trained on ImageNet.
"""
_HEAD = (
    'network',
    'stem',
    'BOPs (10⁹)',
    'FLOPs (10⁸)',
    'OPs (10⁸)',
    'size (MB)',
    'published: BOPs / FLOPs / OPs / MB',
    'ImageNet top-1 / top-5 (published)',
)
_MARKS = '¹²³⁴⁵⁶⁷⁸⁹'


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'tables',
        help='compare the published figures of all networks with the counts of this project',
        epilog=_EXAMPLES,
        description="Print the paper's tables: the published figures and the counts of this project's networks.",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the tables or a JSON object."""
    from model_zoo.published import TABLES

    if arguments.json:
        json.dump(
            [
                {
                    'title': table.title,
                    'source': table.source,
                    'rows': [{'published': vars(row), 'counted': count(row)} for row in table.rows],
                }
                for table in TABLES
            ],
            output,
            indent=1,
        )
        print(file=output)
    else:
        print('\n\n'.join(to_markdown(table) for table in TABLES), file=output)


def count(row):
    """Return the totals of `bmx_melius.summary` for the network of a row."""
    from model_zoo import get_model

    from ..analysis.summary import summary

    stem = {'initial_layers': row.initial_layers} if row.initial_layers else {}
    return summary(get_model(row.network, **stem)).counts


def to_markdown(table):
    """Return a table in Markdown, with title, source and notes. Columns of stems and accuracies are omitted if they would be empty."""
    stems = len({row.initial_layers for row in table.rows}) > 1
    shown = [True, stems, True, True, True, True, any(row.ops or row.note for row in table.rows), any(row.top1 for row in table.rows)]
    lines, notes = [_HEAD], []
    for row in table.rows:
        counted = count(row)
        mark = ''
        if row.note:
            mark = ' ' + _MARKS[len(notes)]
            notes.append(f'{mark.strip()} {row.note}.')
        figures = [row.bops, row.flops, (row.ops or '-') + mark, row.size]
        lines.append(
            (
                row.network,
                row.initial_layers,
                f'{counted["bops"] / 1e9:.3f}',
                f'{counted["flops"] / 1e8:.3f}',
                f'{counted["ops"] / 1e8:.3f}',
                f'{counted["size_bytes"] / 2**20:.2f}',
                ' / '.join(figure or '-' for figure in figures),
                f'{row.top1 or "-"} / {row.top5 or "-"}',
            )
        )
    lines = [[cell for cell, is_shown in zip(line, shown) if is_shown] for line in lines]
    lines.insert(1, ['-'] * len(lines[0]))
    text = '\n'.join('|' + '|'.join(f' {cell} ' if number != 1 else cell for cell in line) + '|' for number, line in enumerate(lines))
    if table.source:
        notes.append(f'Published: {table.source}.')
    return '\n\n'.join(filter(None, (f'### {table.title}', text, ' '.join(notes))))
