"""Program that fuzzes a target of `fuzz.targets`.

Run: ``python_fuzzer.py TARGET [argument of libFuzzer ...]``

With Atheris the fuzzer is libFuzzer, guided by the coverage of the library's Python code. Where Atheris is not installed, random mutations
of the seeds are read instead; of the arguments only -max_total_time and -artifact_prefix have an effect then.
"""

import hashlib
import importlib
import os
import pathlib
import sys
import time
import warnings

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[level]) for level in (1, 2)]
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('BMX_MELIUS_MEMORY_LIMIT', str(1 << 24))
warnings.simplefilter('ignore')

try:
    import atheris
except ImportError:
    atheris = None

_INSTRUMENTED = ('bmx_melius', 'model_zoo')


def _target(name):
    """Return a target; with Atheris the modules of the library count their coverage."""
    if atheris is None:
        return importlib.import_module('fuzz.targets').TARGETS[name]
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


def _mutate_at_random(target, arguments):
    """Read mutations of the seeds, and mutations of accepted ones, for the given time; print figures as libFuzzer does."""
    seconds = next(float(argument.partition('=')[2]) for argument in arguments if argument.startswith('-max_total_time='))
    run, corpus, end, number = _watched(target, arguments), target.corpus(), time.monotonic() + seconds, 0
    seeds = len(corpus)
    while time.monotonic() < end:
        content = target.mutate(corpus[number % len(corpus)], number)
        if run(content) and number % 8 == 0:
            del corpus[seeds + 1000 :]
            corpus.insert(seeds, content)
        number += 1
    print(f'stat::number_of_executed_units: {number}', file=sys.stderr)


def main():
    """Run the fuzzer that the command line names."""
    name, *arguments = sys.argv[1:]
    target = _target(name)
    (_mutate_at_random if atheris is None else _fuzz)(target, arguments)


if __name__ == '__main__':
    main()
