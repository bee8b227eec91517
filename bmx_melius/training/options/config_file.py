"""Flags in a file (``--config``): YAML or JSON with names and values of flags, or the ``config.json`` of a run."""

import argparse
import difflib
import json

from ...arguments import switch
from ...errors import UserError, last_line
from ...files.io import read_text

_MAX_VALUES = 100_000  # in a file, with aliases of YAML replaced by what they stand for
# Flags in the ``config.json`` of a run that belong to its folder and not to the training.
_OF_THE_RUN = ('save_dir', 'resume', 'dry_run')


def expand_config(arguments, parser):
    """Return command-line arguments in which ``--config FILE`` is replaced by the flags in the file, put before all others.

    Parameters
    ----------
    arguments : list of str
    parser : argparse.ArgumentParser
        Parser of the flags; of two values of a flag it takes the last one, so the command line overrides the file.

    Raises
    ------
    UserError
        When the file is missing or malformed, or has a flag that does not exist, or a value of the wrong kind.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    finder.add_argument('--config', nargs='?')
    found, others = finder.parse_known_args(arguments)
    if 'config' not in found:
        return arguments
    if found.config is None:
        raise UserError('--config needs the name of a file')
    actions, off = {}, {}
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            actions.setdefault(action.dest, action)
            actions.update({name.lstrip('-').replace('-', '_'): action for name in action.option_strings})
        if action.type is switch:
            off[action.dest] = f'{action.option_strings[-1]}=off'
        elif action.nargs == 0 and action.const is False:
            off[action.dest] = action.option_strings[-1]
    flags = [flag for name, value in _read(found.config, actions).items() for flag in _flags(found.config, name, value, actions, off)]
    return [*flags, *others]


def _read(path, known):
    """Return the flags in a file, a dict; from the ``config.json`` of a run the flags of its last session that are `known`."""
    text = read_text(path)
    try:
        if path.endswith('.json'):
            content = json.loads(text)
        else:
            import yaml  # here, because only this needs it

            content = yaml.safe_load(text)
    except ImportError as error:
        raise UserError(f'--config: {path} needs the package PyYAML: pip install pyyaml, or write the flags as JSON') from error
    except (ValueError, RecursionError) as error:
        kind = 'JSON' if path.endswith('.json') else 'YAML'
        raise UserError(f'--config: {path} is not a {kind} file: {last_line(error)}') from error
    except yaml.YAMLError as error:
        raise UserError(f'--config: {path} is not a YAML file: {" ".join(str(error).split())}') from error
    _require_few_values(path, content)
    try:
        arguments = content['sessions'][-1]['arguments']
        return {name: value for name, value in arguments.items() if name in known and name not in _OF_THE_RUN}
    except (AttributeError, LookupError, TypeError):
        if not isinstance(content, dict):
            raise UserError(f'--config: {path} must have names of flags and their values, such as lr: 0.001') from None
        return content


def _require_few_values(path, content):
    """Raise `UserError` if a file expands to very many values: an alias of YAML may contain itself, or others many times."""
    values, count = [content], 0
    while values:
        value = values.pop()
        values += value.values() if isinstance(value, dict) else value if isinstance(value, (list, set, tuple)) else ()
        count += 1
        if count + len(values) > _MAX_VALUES:
            raise UserError(f'--config: {path} has more than {_MAX_VALUES:,} values, or an alias that contains itself')


def _flags(path, name, value, actions, off):
    """Return a value in a file as arguments of the command line, ``['--lr=0.001']``: none for null, an empty list, and what is off anyway.

    `off` has the argument that turns off what a preset or the network may turn on, by the attribute of the flag.
    """
    action = actions.get(str(name).lstrip('-').replace('-', '_'))
    if action is None or action.dest in ('help', 'config'):
        near = difflib.get_close_matches(str(name).replace('-', '_'), actions, n=1)
        advice = f'; did you mean {near[0].replace("_", "-")}?' if near else ''
        raise UserError(f'--config: {path} has {name!r}, which is not a flag of this program{advice}')
    flag = action.option_strings[-1]
    if value is None or value is False or value == []:
        return [off[action.dest]] if value is False and action.dest in off else []
    if value is True or action.nargs == 0:
        if value is not True or action.nargs not in (0, '?'):
            kind = 'true or false' if action.nargs == 0 else 'a value'
            raise UserError(f'--config: {path}: {name} needs {kind}, not {json.dumps(value, default=str)}')
        return [flag]
    if isinstance(value, dict):
        return [f'{flag}={json.dumps(value)}']
    return [f'{flag}={",".join(map(str, value)) if isinstance(value, list) else value}']
