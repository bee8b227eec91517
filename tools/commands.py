"""Commands of the tools: what they print, the packages that they need, and errors of users as one line.

``python tools/commands.py NAME=PACKAGE ...`` installs missing programs, as `install_tools` does.
"""

import os
import shutil
import signal
import subprocess
import sys
from typing import Callable, Dict, Optional

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


def run_main(main: Callable, *arguments) -> None:
    """Call the main function of a tool; a `UserError` ends the program with its message."""
    try:
        main(*arguments)
    except UserError as error:
        sys.exit(f'error: {error}')


if __name__ == '__main__':
    run_main(install_tools, dict(argument.split('=') for argument in sys.argv[1:]))
