"""Write ``requirements/*.txt``: exact versions of what the extras in setup.py and the groups in pyproject.toml need. `make pins` runs it.

uv resolves the versions for Linux and all Pythons that MXNet supports (`wheel`: from 3.9). Those in the files stay as long as they fit;
the option --upgrade looks for newer versions. All files other than tests.txt have its versions. They are installed beside it, so they list
only what it does not; lint.txt has an environment to itself, so it lists everything.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / 'requirements'
ALL = 'tests'  # the environment of `make demo` and `make test`
WHOLE = (ALL, 'lint')  # with an environment to themselves
FILES = {  # name -> extras, groups and the oldest Python
    ALL: (['demo', 'serve', 'test'], ['tests'], '3.8'),
    'docs': (['docs'], ['docs'], '3.8'),
    'fuzz': ([], ['fuzz'], '3.8'),
    'lint': ([], ['lint'], '3.8'),
    'pins': ([], ['pins'], '3.8'),
    'scale': (['score', 'ray'], [], '3.8'),
    'service-tests': ([], ['service-tests'], '3.8'),
    'wheel': ([], ['wheel'], '3.9'),
}
ENVIRONMENT = (  # tool.uv.environments of pyproject.toml, not to be repeated in each line
    "sys_platform == 'linux'",
    "implementation_name == 'cpython'",
    "platform_python_implementation == 'CPython'",
    "python_full_version < '3.12'",
)
HEADING = '# Written by `make pins` from setup.py and pyproject.toml.\n'


def main(options):
    """Write all files."""
    pins = {}
    for name, (extras, groups, python) in FILES.items():
        path = FOLDER / f'{name}.txt'
        scratch = path.with_suffix('.new')
        scratch.write_text(path.read_text() if path.exists() else '')  # uv keeps the versions that it finds here
        command = ['uv', 'pip', 'compile', '--quiet', '--universal', '--no-header', '--no-annotate', '--python-version', python, *options]
        command += [f'--group={group}' for group in groups] + [f'--extra={extra}' for extra in extras] + ['setup.py'] * bool(extras)
        command += [] if name == ALL else ['--constraint', str(FOLDER / f'{ALL}.txt')]
        try:
            subprocess.run([*command, '--output-file', str(scratch)], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            lines = [_without_environment(line) for line in scratch.read_text().splitlines() if not line.startswith('#')]
            pins[name] = [line for line in lines if name in WHOLE or line not in pins[ALL]]
            scratch.write_text(HEADING + '\n'.join(pins[name]) + '\n')
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        print(f'{path.relative_to(ROOT)}: {len(pins[name])} versions')


def _without_environment(line):
    pin, _, marker = line.partition(' ; ')
    terms = [term for term in marker.split(' and ') if term and term not in ENVIRONMENT]
    return ' ; '.join([pin, *([' and '.join(terms)] if terms else [])])


if __name__ == '__main__':
    main(sys.argv[1:])
