"""Program that fuzzes a target of `fuzz.targets`.

Run: ``python_fuzzer.py TARGET [argument of libFuzzer ...]``

The fuzzer is Atheris: libFuzzer, guided by the coverage of the library's Python code.
"""

import hashlib
import importlib
import os
import pathlib
import sys
import warnings

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[level]) for level in (1, 2)]
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('BMX_MELIUS_MEMORY_LIMIT', str(1 << 24))
warnings.simplefilter('ignore')

import atheris  # noqa: E402

_INSTRUMENTED = ('bmx_melius', 'model_zoo')


def _target(name):
    """Return a target; the modules of the library count their coverage."""
    import mxnet  # noqa: F401  before the instrumentation, because it takes long, and is another project

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        target = importlib.import_module('fuzz.targets').TARGETS[name]
        for content in target.corpus():  # imports the modules that are imported when they are needed
            target.run(content)
    return target


def _watched(target, arguments):
    """Return `target.run` that keeps the inputs that cause exceptions: libFuzzer may be ended before it has done so."""
    prefix = next((argument.partition('=')[2] for argument in arguments if argument.startswith('-artifact_prefix=')), '')

    def run(content):
        try:
            return target.run(content)
        except BaseException:
            path = f'{prefix}crash-{hashlib.sha1(content).hexdigest()}'
            pathlib.Path(path).write_bytes(content)
            print(f'Test unit written to {path}', file=sys.stderr, flush=True)
            raise

    return run


def _fuzz(target, arguments):
    run = _watched(target, arguments)

    def mutate(content, max_size, seed):
        changed = target.mutate(content, seed, lambda part, _: atheris.Mutate(part, max(max_size, len(part) + 1)))
        return changed[:max_size]

    atheris.Setup([sys.argv[0], *arguments], lambda content: run(content) and None, custom_mutator=mutate)
    atheris.Fuzz()


def main():
    """Run the fuzzer that the command line names."""
    name, *arguments = sys.argv[1:]
    _fuzz(_target(name), arguments)


if __name__ == '__main__':
    main()
