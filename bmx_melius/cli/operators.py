"""``bmx-melius operators``: what conversion does with the operators of MXNet."""

from .options import add_json_flag, print_json

_EXAMPLES = """\
examples:
  bmx-melius operators            # packed, kept in MXNet or refused, as Markdown: docs/operators.md
  bmx-melius operators --json
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'operators',
        help='list the operators of MXNet that are packed, and those that remain',
        epilog=_EXAMPLES,
        description='Print the operators of MXNet that conversion packs and those that remain operators of MXNet, with the conditions.',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print a Markdown table or a JSON object."""
    from ..deployment.convert.rules.listing import rows, to_markdown

    if arguments.json:
        print_json([{'operators': names, 'status': status, 'text': text} for names, status, text in rows()], output)
    else:
        print(to_markdown(), file=output)
