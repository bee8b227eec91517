"""``bmx-melius tables``: what was published of the networks, beside what they count here."""

import json

from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius tables                 # all, as Markdown
  bmx-melius tables --json

A multiply-accumulate of a convolution is one operation; OPs = BOPs / 64 + FLOPs; a binary weight takes one bit, a MB has 2^20 bytes. The
accuracies are those published: this project has not trained on ImageNet.
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
    """Add the command."""
    parser = commands.add_parser(
        'tables',
        help='the published figures of all networks, beside what they count here',
        epilog=_EXAMPLES,
        description="Print the paper's tables: its figures, and what the networks of this project count.",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the tables, or the JSON object."""
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
    """The totals of `bmx_melius.summary` of a row's network."""
    from model_zoo import get_model

    from ..analysis.summary import summary

    stem = {'initial_layers': row.initial_layers} if row.initial_layers else {}
    return summary(get_model(row.network, **stem)).counts


def to_markdown(table):
    """A table with its title, its source and its notes. The columns of stems and accuracies are there where there is something in them."""
    stems = len({row.initial_layers for row in table.rows}) > 1
    published = any(row.ops for row in table.rows)
    shown = [True, stems, True, True, True, True, published, published]
    lines, notes = [_HEAD], []
    for row in table.rows:
        counted = count(row)
        mark = ''
        if row.note:
            mark = ' ' + _MARKS[len(notes)]
            notes.append(f'{mark.strip()} {row.note}.')
        figures = [row.bops, row.flops, row.ops and row.ops + mark, row.size]
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
