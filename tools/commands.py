"""Commands of the tools: what they print, the packages that they need, and errors of users as one line.

``python tools/commands.py NAME=PACKAGE ...`` installs missing programs, as `install_tools` does.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence

from bmx_melius.errors import UserError


def install_tools(packages: Dict[str, str]) -> None:
    """Install missing programs and libraries: their names -> the packages of Debian and Ubuntu.

    Libraries have the names that pkg-config knows, which begin with lib. Raises `UserError` where that is not possible.
    """
    missing = {name: package for name, package in packages.items() if not _is_there(name)}
    if not missing:
        return
    if os.geteuid() or not shutil.which('apt-get'):
        raise UserError(f'{", ".join(missing)} are needed (on Debian and Ubuntu: apt-get install {" ".join(missing.values())})')
    for command in (['update'], ['install', '--yes', '--no-install-recommends', *missing.values()]):
        output_of(['apt-get', '-qq', *command])


def _is_there(name):
    if not name.startswith('lib'):
        return bool(shutil.which(name))
    return bool(shutil.which('pkg-config')) and not subprocess.run(['pkg-config', '--exists', name]).returncode


def output_of(command, environment=None, folder=None, messages: bool = True, seconds: Optional[float] = None) -> str:
    """Run a command and return its output, with standard error if `messages`. Raises `UserError` if it fails.

    A command that takes more than `seconds` fails, and is killed with the processes that it has started.
    """
    command = list(map(str, command))
    # Options of a `make` that runs this would change what another one prints.
    environment = {name: value for name, value in (environment or os.environ).items() if name not in ('MAKEFLAGS', 'MFLAGS', 'MAKELEVEL')}
    errors = subprocess.STDOUT if messages else subprocess.PIPE
    options = {'cwd': folder, 'env': environment, 'start_new_session': seconds is not None}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, **options)
    try:
        output, rest = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise UserError(f'{command[0]} has not ended within {seconds} seconds') from error
    if process.returncode:
        raise UserError(f'{" ".join(command)} failed (exit status {process.returncode}): {(output + (rest or "")).strip()}')
    return output


def chosen(wanted: Sequence[str], names: Iterable[str]) -> List[str]:
    """Return the names that arguments choose, without arguments all: those that equal one of them or have it as a word."""
    names = list(names)
    unknown = [word for word in wanted if not any(word == name or word in name.split() for name in names)]
    if unknown:
        raise UserError(f'there is no {unknown[0]}; there are {", ".join(names)}')
    return [name for name in names if not wanted or any(word == name or word in name.split() for word in wanted)]


def run_parts(description: str, tools: Dict[str, str], parts_in: Callable[[pathlib.Path], Dict[str, Callable[[], None]]]) -> None:
    """Run the parts of a test that the command line names, one after the other, and print the seconds of each.

    Parameters
    ----------
    description : str
        For ``--help``.
    tools : dict
        What `install_tools` gets first.
    parts_in : function
        With a folder for files returns the name of each part -> a function that raises `UserError` if the part fails.

    Raises
    ------
    UserError
        After the last part if some have failed: their names, as arguments with which only they are run.
    """
    parser = argparse.ArgumentParser(description=description.split('\n')[0])
    parser.add_argument('parts', nargs='*', metavar='PART', help='name of a part, or a word of several names; default: all')
    parser.add_argument('--list', action='store_true', help='list the parts')
    arguments, failed = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_in(pathlib.Path(folder))
        names = chosen(arguments.parts, parts)
        if arguments.list:
            print('\n'.join(names))
            return
        install_tools(tools)
        for name in names:
            begin = time.monotonic()
            try:
                parts[name]()
            except (UserError, subprocess.CalledProcessError) as error:
                failed.append(name)
                print(f'{name}: {error}', file=sys.stderr, flush=True)
            else:
                print(f'{name}: ok, {time.monotonic() - begin:.0f} s', flush=True)
    if failed:
        raise UserError(f'{len(failed)} of {len(names)} parts failed: ' + ' '.join(map(repr, failed)))


def run_main(main: Callable, *arguments) -> None:
    """Call the main function of a tool; a `UserError` ends the program with its message."""
    try:
        main(*arguments)
    except UserError as error:
        sys.exit(f'error: {error}')


if __name__ == '__main__':
    run_main(install_tools, dict(argument.split('=') for argument in sys.argv[1:]))
