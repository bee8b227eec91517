"""``bmx-melius tables``: tables 1 to 4 of the MeliusNet paper compared with the counts of this project."""

import functools

from .options import add_json_flag, print_json
from .tables_markdown import to_markdown

_EXAMPLES = """\
examples:
  bmx-melius tables                 # all tables and the contradictions between them, as Markdown
  bmx-melius tables --table 3       # the comparison with other methods
  bmx-melius tables --json

A multiply-accumulate of a convolution is one operation; OPs = BOPs / 64 + FLOPs. A k-bit weight counts k bits; 1 MB is 2^20 bytes.
Accuracies are published by others: this project has not trained on ImageNet. A dash: not published, or not in the model zoo.
"""
_PARTS = ('1', '2', '3', '4', 'logs', 'others')


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'tables',
        help="compare the paper's tables with the counts of this project",
        epilog=_EXAMPLES,
        description="Print the paper's tables as published, with the counts of this project's networks.",
    )
    help = "print only a table of the paper (1 to 4), the authors' training logs, or the other networks of the zoo (default: all)"
    parser.add_argument('--table', choices=_PARTS, help=help)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the tables or a JSON object."""
    from model_zoo.published import read_published

    content = _selected(read_published(), arguments.table)
    count_once = functools.lru_cache(maxsize=None)(count)  # many networks are in several tables
    for row in _rows(content):
        row['counted'] = {size: count_once(**network) for size, network in _by_size(row['get_model']).items()}
    if arguments.json:
        print_json(_to_json(content), output)
    else:
        print(to_markdown(content), file=output)


def count(name, **arguments):
    """Return the totals of `bmx_melius.summary` for a network, with its arguments of `get_model`; None if there is no such network."""
    from model_zoo import get_gluoncv_list, get_model
    from model_zoo.published import is_available
    from model_zoo.registry import get_gluoncv_model

    from ..analysis.summary import summary

    if not is_available(name):
        return None
    build = get_gluoncv_model if name in get_gluoncv_list() else get_model
    return {'network': name, **arguments, **summary(build(name, **arguments)).counts}


def _selected(content, part):
    """Return the content with only one of `_PARTS` and the contradictions that concern it; everything if `part` is None."""
    for number, contradiction in enumerate(content['contradictions'], start=1):
        contradiction['number'] = number
    if part is None:
        return content
    number = int(part) if part.isdigit() else None
    return {
        **content,
        'tables': [table for table in content['tables'] if table['number'] == number],
        'logs': content['logs'] if part == 'logs' else {**content['logs'], 'rows': []},
        'others': content['others'] if part == 'others' else [],
        'contradictions': [contradiction for contradiction in content['contradictions'] if number in contradiction['tables']],
    }


def _rows(content):
    return [row for table in (*content['tables'], content['logs']) for row in table['rows']] + content['others']


def _by_size(networks):
    """Return the networks of a row by size class; a row without classes has the class ''."""
    return {'': networks} if 'name' in networks else networks


def _to_json(content):
    """Return the content for programs: the rows of the paper with only ``counted`` added; contradictions list their figures."""
    contradictions = {one['id']: {**one, 'figures': []} for one in content['contradictions']}
    for table in content['tables']:
        for index, row in enumerate(table['rows']):
            for column, name in row.pop('contradictions', {}).items():
                contradictions[name]['figures'].append({'table': table['number'], 'row': index, 'column': column})
    for row in _rows(content):
        del row['get_model']
        row['counted'] = row['counted'].get('', row['counted'])
    return {**content, 'contradictions': list(contradictions.values())}
