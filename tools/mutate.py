"""Mutation testing: change one place of the library at a time, and see whether the tests of that part fail. `make mutate` runs it.

A seed draws the places, equally often of each kind in `KINDS`. The mutants live in a copy of the checkout, build/mutation, never in its
own files. Each is judged by the tests that are closest to its file; when all have been, those that survive by all tests of their part. What
was judged is a row of tests/mutations.csv, so that an interrupted run goes on where it stopped. Finally the tests that failed run without
mutants, and the files of tests that crashed or took too long: those that fail then as well have noticed nothing.

After adding a test, --survivors judges those again that have survived. One that no test can notice is marked by hand: verdict `equivalent`,
with the reason as its note. The next place of the seed replaces it, like one that does not compile.

The order of the draw depends on the text of a line, not on its number, so that changes elsewhere keep the places of a seed.
"""

import argparse
import ast
import collections
import csv
import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIES = ROOT / 'build' / 'mutation'  # a copy of the checkout for each language, so that both can be tested at once
RESULTS = ROOT / 'tests' / 'mutations.csv'
COLUMNS = ('seed', 'language', 'kind', 'place', 'change', 'tests', 'verdict', 'note')

KINDS = ('comparison', 'bound', 'sign', 'order', 'lock', 'check')

SOURCES = {'python': ('bmx_melius/**/*.py', 'model_zoo/**/*.py'), 'cpp': ('bmx_melius/csrc/**/*.cc', 'bmx_melius/csrc/**/*.h')}
# Not mutated: what is generated, what x86 processors do not compile or run, and peers and workers that need libraries outside the tests.
EXCLUDED = re.compile(
    r'csrc/program/operation_table\.h|csrc/program/older_systems\.cc|csrc/kernels/(arm|wasm)/|_(neon|dotprod|i8mm|wasm)\.cc|csrc/peaks/peak_amx'
    r'|bench/peers/|distributed/horovod_workers|_version\.py'
)

# The tests of a part, by the longest prefix of a path: files and folders in tests/. Those before a bar, the closest, run first; where there
# is no bar, these are the files that import the module or have its name.
_CPP = (
    ' | native/test_plan.py native/test_engine.py native/test_engine_runs.py native/test_kernels.py native/test_threads.py'
    ' native/test_c_interface.py native/test_int8.py deployment/program/test_validators.py deployment/program/test_structure.py'
    ' deployment/runtime'
)
_QUANTIZATION = 'deployment/convert/test_quantization.py | deployment/convert deployment/program'
TESTS = {
    'bmx_melius/': 'test_reporting.py test_arithmetic.py deployment/runtime cli packaging/test_project.py training/test_training_flags.py',
    'bmx_melius/analysis/': 'analysis cli',
    'bmx_melius/bench/': 'native/test_bench.py cli',
    'bmx_melius/cli/': 'cli deployment/convert/test_converter_command.py deployment/export scoring importers images native/test_bench.py',
    'bmx_melius/compat/': 'importers/test_compat_bmxnet.py',
    'bmx_melius/data/': 'images training/test_photos.py training/test_fit.py training/test_ensemble_training.py',
    'bmx_melius/data/opening.py': 'images/test_data.py images/test_folder_split.py images/test_small_images.py'
    ' | images training/test_photos.py training/test_fit.py zoo',
    'bmx_melius/deployment/': 'deployment analysis',
    'bmx_melius/deployment/c_export/': 'deployment/export',
    'bmx_melius/deployment/convert/': 'deployment/convert deployment/program',
    'bmx_melius/deployment/convert/calibration': _QUANTIZATION,
    'bmx_melius/deployment/convert/quantization': _QUANTIZATION,
    'bmx_melius/deployment/convert/rules/': 'deployment/convert/test_converter_layers.py deployment/convert/test_operators.py'
    ' deployment/convert/test_converter.py'
    ' deployment/convert/test_converter_methods.py deployment/convert/test_converter_volumes.py'
    ' | deployment/convert deployment/program',
    'bmx_melius/deployment/convert/thresholds.py': 'deployment/convert/test_thresholds.py deployment/convert/test_converter_methods.py'
    ' | deployment/convert deployment/program',
    'bmx_melius/deployment/onnx/export.py': 'deployment/export/test_onnx.py',
    'bmx_melius/deployment/program/': 'deployment/program deployment/runtime native/test_engine.py deployment/convert',
    'bmx_melius/deployment/program/reference.py': 'deployment/program/test_integers.py deployment/program/test_reference.py'
    ' native/test_engine.py | deployment/program deployment/runtime deployment/convert',
    'bmx_melius/deployment/runtime/': 'deployment/runtime native/test_engine_runs.py native/test_threads.py',
    'bmx_melius/distributed/': 'distributed',
    'bmx_melius/files/': 'files deployment/runtime training/test_checkpoints.py',
    'bmx_melius/import_hooks.py': 'deployment/runtime/test_session_programs.py deployment/runtime/test_without_mxnet.py | cli packaging',
    'bmx_melius/importers/': 'importers',
    'bmx_melius/nn/': 'nn zoo',
    'bmx_melius/optimizers.py': 'training/test_optimizers.py',
    'bmx_melius/scoring/': 'scoring',
    'bmx_melius/serving/': 'serving',
    'bmx_melius/training/': 'training',
    'bmx_melius/training/options/': 'training/test_training_flags.py training/test_optimizer_flags.py training/test_config_file.py'
    ' training/test_presets.py | training',
    'bmx_melius/vision/': 'images deployment/runtime/test_classify.py scoring',
    'model_zoo/': 'zoo nn training/test_ensemble_training.py',
    'bmx_melius/csrc/api/': 'deployment/runtime/test_session_refusals.py native/test_engine_runs.py native/test_c_interface.py' + _CPP,
    'bmx_melius/csrc/api/classifier.': 'native/test_c_classifier.py' + _CPP,
    'bmx_melius/csrc/api/engine': 'native/test_engine_runs.py native/test_c_interface.py native/test_threads.py' + _CPP,
    'bmx_melius/csrc/api/mxnet_op.cc': 'deployment/runtime/test_mxnet_op.py' + _CPP,
    'bmx_melius/csrc/classifier/': 'native/test_c_classifier.py' + _CPP,
    'bmx_melius/csrc/kernels/': 'native/test_engine.py native/test_kernels.py' + _CPP,
    'bmx_melius/csrc/kernels/common/int8': 'native/test_int8.py' + _CPP,
    'bmx_melius/csrc/kernels/reference/': 'native/test_kernels.py' + _CPP,
    'bmx_melius/csrc/kernels/reference/int8': 'native/test_int8.py' + _CPP,
    'bmx_melius/csrc/kernels/x86/binary_amx': 'native/test_kernels.py' + _CPP,
    'bmx_melius/csrc/kernels/x86/binary_tiles_amx': 'native/test_kernels.py' + _CPP,
    'bmx_melius/csrc/kernels/x86/float_amx': 'native/test_kernels.py' + _CPP,
    'bmx_melius/csrc/kernels/x86/int8': 'native/test_int8.py' + _CPP,
    'bmx_melius/csrc/peaks/': 'native/test_bench.py' + _CPP,
    'bmx_melius/csrc/plan/': 'native/test_engine.py' + _CPP,
    'bmx_melius/csrc/program/': 'deployment/program/test_validators.py native/test_engine.py' + _CPP,
    'bmx_melius/csrc/steps/': 'native/test_engine.py native/test_engine_runs.py' + _CPP,
    'bmx_melius/csrc/steps/int8': 'native/test_int8.py' + _CPP,
    'bmx_melius/csrc/threads/': 'native/test_threads.py' + _CPP,
}
CLOSEST = 4  # files of tests, the shortest first
STAGES = ('closest', 'part')
BUILD_LIMIT = 1200  # seconds
LIMITS = {'closest': 600, 'part': 1500}  # seconds; a mutant that runs longer hangs, which the limit of a test would notice

SWAPS = {
    **{'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '=='},
    **{'is': 'is not', 'is not': 'is', 'in': 'not in', 'not in': 'in'},
    **{'+': '-', '-': '+', '*': '/', '/': '*', '//': '*', '+=': '-=', '-=': '+='},
    **{'and': 'or', 'or': 'and', '&&': '||', '||': '&&', 'min': 'max', 'max': 'min'},
}


@dataclasses.dataclass(frozen=True)
class Place:
    """A place and its change: the bytes `begin` to `end` of a file become `new`."""

    kind: str
    path: str  # relative to the root
    begin: int
    end: int
    new: bytes

    def mutated(self, source):
        return source[: self.begin] + self.new + source[self.end :]

    def describe(self, source):
        """Return the place as PATH:LINE, and the lines before and after the change."""
        first = source.rfind(b'\n', 0, self.begin) + 1
        last = (source.find(b'\n', self.end) + len(source)) % len(source)
        before, after = source[first:last], source[first : self.begin] + self.new + source[self.end : last]
        lines = [' '.join(text.decode().split()) for text in (before, after)]
        line = source[: self.begin].count(b'\n') + 1
        return f'{self.path}:{line}', ' => '.join(lines)


def python_places(path, source):
    """Yield the places of a Python file."""
    starts = list(itertools.accumulate((len(line) for line in source.splitlines(keepends=True)), initial=0))

    def offset(line, column):
        return starts[line - 1] + column

    def span(node):
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def text(node):
        begin, end = span(node)
        return source[begin:end]

    def place(kind, begin, end, new):
        return Place(kind, path, begin, end, new if isinstance(new, bytes) else new.encode())

    def operator(kind, left, right, pattern):
        begin, end = span(left)[1], span(right)[0]
        found = re.search(pattern, source[begin:end])
        if found and b'#' not in source[begin:end]:
            yield place(kind, begin + found.start(), begin + found.end(), SWAPS[' '.join(found.group().decode().split())])

    def visit(node, parent):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Assign) and text(node).startswith(b'__all__')):
            return  # positions inside of f-strings are those of a later Python
        if isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators):
                yield from operator('comparison', left, right, rb'[<>]=?|[!=]=|\bis\s+not\b|\bis\b|\bnot\s+in\b|\bin\b')
        if isinstance(node, ast.Constant) and type(node.value) is int:
            near = isinstance(parent, (ast.Compare, ast.Slice)) or (
                isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub))
            )
            if near or (isinstance(parent, ast.Call) and text(parent.func) in (b'range', b'min', b'max')):
                yield place('bound', *span(node), str(node.value + 1))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ('min', 'max'):
            yield place('bound', *span(node.func), SWAPS[node.func.id])
        if isinstance(node, ast.BinOp) and not any(
            isinstance(side, (ast.JoinedStr, ast.List)) or _is_text(side) for side in (node.left, node.right)
        ):
            yield from operator('sign', node.left, node.right, rb'(?<!\*)(\+|-|//?|\*)(?!\*)')
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield from operator('sign', node.target, node.value, rb'[+-]=')
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield place('sign', span(node)[0], span(node.operand)[0], '')
        if isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:]):
                yield from operator('check', left, right, rb'\b(and|or)\b')
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield place('check', span(node)[0], span(node.operand)[0], '')
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Raise, ast.Return, ast.Continue, ast.Break)):
            yield place('check', *span(node.test), 'False')
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = text(node.value.func).rpartition(b'.')[2].lstrip(b'_')
            if called.startswith((b'check', b'require', b'refuse', b'validate')):
                yield place('check', *span(node), 'pass')
            if called in (b'flock', b'acquire', b'release'):
                yield place('lock', *span(node), 'pass')
        if isinstance(node, (ast.With, ast.AsyncWith)) and len(node.items) == 1 and node.items[0].optional_vars is None:
            guard = node.items[0].context_expr
            if re.search(rb'lock|mutex|turn|condition|changed|semaphore', text(guard)):
                yield place('lock', span(node)[0], span(guard)[1], 'if True')
        if isinstance(node, ast.Call) and len(node.args) > 1 and text(node.func) not in (b'min', b'max', b'isinstance', b'getattr'):
            first, second = node.args[:2]
            if all(isinstance(side, (ast.Name, ast.Attribute, ast.Constant)) for side in (first, second)) and text(first) != text(second):
                between = source[span(first)[1] : span(second)[0]]
                yield place('order', span(first)[0], span(second)[1], text(second) + between + text(first))
        for block in (getattr(node, name, None) for name in ('body', 'orelse', 'finalbody')):
            for first, second in zip(block, block[1:]) if isinstance(block, list) else ():
                if _depends(first, second, text):
                    between = source[span(first)[1] : span(second)[0]]
                    if b'#' not in between:
                        yield place('order', span(first)[0], span(second)[1], text(second) + between + text(first))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, node)

    yield from visit(ast.parse(source), None)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _depends(first, second, text):
    """Return whether the order of two statements is likely to matter: two calls, or a second that reads what the first assigns."""
    calls = [isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in (first, second)]
    if all(calls):
        return True
    if not isinstance(first, (ast.Assign, ast.AugAssign)) or not isinstance(second, (ast.Assign, ast.AugAssign, ast.Expr)):
        return False
    target = text(first.targets[0] if isinstance(first, ast.Assign) else first.target)
    return bool(re.search(rb'(?<![\w.])' + re.escape(target) + rb'(?!\w)', text(second)))


CPP_TEXT = re.compile(rb'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE)
CPP_SKIPPED = re.compile(rb'\b(template|static_assert|operator|using|typename|extern)\b')
CPP_PATTERNS = [  # kind, pattern, group to replace, its replacement or None: that of SWAPS; clang-format puts spaces around operators
    ('comparison', rb' ([<>]=?|[!=]=) ', None),
    ('bound', rb'(?: (?:[<>]=?|[!=]=|[+-]) |= )(\d+)(?=[;,) ])', lambda old: str(int(old) + 1)),
    ('bound', rb'\bstd::(min|max)\b', None),
    ('sign', rb'(?<=[\w)\]]) ([+*-]|/|\+=|-=) (?=[\w(*-])', None),
    ('sign', rb'(?:[(,=?:] ?|return )(-)(?=[\w(])', lambda old: ''),
    ('lock', rb'^ +(std::(?:lock_guard|unique_lock|scoped_lock)\b[^;\n]*;)', lambda old: ';'),
    ('check', rb' (&&|\|\|) ', None),
    ('check', rb'\bif \(([^\n]*)\) \{\n +(?:throw|return|continue|break|refuse)\b', lambda old: f'false && ({old})'),
    ('check', rb'^ +((?:check|require|refuse|validate)\w*\([^;]*\);)', lambda old: ';'),
    ('order', rb'(?<!min)(?<!max)\(([\w.]*[a-z_]\w*, [\w.]*[a-z_]\w*)[,)]', lambda old: ', '.join(old.split(', ')[::-1])),
]
CPP_STATEMENT = rb'(?!return|using|throw|delete|case|break|const|goto)(?:(?P<target%d>[\w.>\[\]-]+) [-+*/|&]?= [^\n]*|[\w.>:-]+\([^\n]*\));'
CPP_TWO_STATEMENTS = re.compile(rb'^( {8,})(' + CPP_STATEMENT % 1 + rb')\n\1(' + CPP_STATEMENT % 2 + rb')$', re.MULTILINE)


def cpp_places(path, source):
    """Yield the places of a C++ file."""
    code = CPP_TEXT.sub(lambda found: re.sub(rb'[^\n]', b'\x00', found.group()), source)  # same length: no place in a comment or text
    for kind, pattern, change in CPP_PATTERNS:
        for found in re.finditer(pattern, code, re.MULTILINE):
            begin, end = found.span(1)
            line = code[code.rfind(b'\n', 0, begin) + 1 : code.find(b'\n', end)]
            old = source[begin:end].decode()
            if not CPP_SKIPPED.search(line):
                yield Place(kind, path, begin, end, (change(old) if change else SWAPS[old]).encode())
    for found in CPP_TWO_STATEMENTS.finditer(code):
        target = found['target1']
        if target is None or target.split(b'[')[0] in found.group(4):
            (begin, middle), (second, end) = found.span(2), found.span(4)
            yield Place('order', path, begin, end, source[second:end] + source[middle:second] + source[begin:middle])


PLACES = {'python': python_places, 'cpp': cpp_places}


def draw(language, seed):
    """Yield (place, source of its file, PATH:LINE, change) for all places of a language, ordered by a seed; kinds take turns."""
    queues = {kind: [] for kind in KINDS}
    for pattern in SOURCES[language]:
        for file in sorted(ROOT.glob(pattern)):
            path = str(file.relative_to(ROOT))
            if EXCLUDED.search(path):
                continue
            source, seen = file.read_bytes(), collections.Counter()
            for place in PLACES[language](path, source):
                where, change = place.describe(source)
                seen[change] += 1
                if seen[change] > 1:
                    change += f' ({seen[change]})'  # the same line once more
                key = hashlib.sha256(f'{seed} {path} {change}'.encode()).digest()
                queues[place.kind].append((key, place, source, where, change))
    for queue in queues.values():
        queue.sort(key=lambda row: row[0], reverse=True)
    while any(queues.values()):
        for kind in KINDS:
            if queues[kind]:
                yield queues[kind].pop()[1:]


def tests_of(path):
    """Return the tests of the part of a file: the closest, and the others; paths relative to the root."""
    prefix = max((prefix for prefix in TESTS if path.startswith(prefix)), key=len)
    if not path.endswith('.py') and '/csrc/' not in prefix:
        raise ValueError(f'TESTS has no tests for {path}')
    before, bar, after = TESTS[prefix].partition('|')
    part = [file for name in (after or before).split() for file in _test_files(ROOT / 'tests' / name)]
    if bar:
        closest = [ROOT / 'tests' / name for name in before.split()]
    else:
        folder, name = path.rpartition('.')[0].replace('/__init__', '').replace('/', '.').rpartition('.')[::2]
        imports = re.compile(rf'\b{re.escape(folder)}(\.{name}\b|\b.* import .*\b{name}\b)')
        ranks = {
            file: 2 * bool(imports.search(file.read_text())) + (f'_{name}_' in f'{file.stem}_') for file in _test_files(ROOT / 'tests')
        }
        closest = [file for file in sorted(ranks, key=lambda file: (-ranks[file], file.stat().st_size)) if ranks[file]]
        mentions = [file for file in part if file not in closest and re.search(rf'\b{name}\b', file.read_text())]
        closest = [*closest, *mentions, *part][:CLOSEST]
    others = [file for file in part if file not in closest]
    return [[str(file.relative_to(ROOT)) for file in group] for group in (closest, others)]


def _test_files(path):
    return sorted(path.rglob('test_*.py')) if path.is_dir() else [path]


def _git(*command, names=()):
    """Run a command of git in the checkout that reads and prints names separated by zero bytes; return the printed ones."""
    done = subprocess.run(['git', *command], cwd=ROOT, input='\0'.join(names), stdout=subprocess.PIPE, text=True)
    if done.returncode > 1:  # check-ignore ends with 1 if it prints nothing
        sys.exit(f'error: git {command[0]} ends with status {done.returncode}')
    return [name for name in done.stdout.split('\0') if name]


class Copy:
    """A copy of the checkout, in which mutants are compiled and tested."""

    def __init__(self, folder, workers):
        self.folder, self._workers = folder, workers
        self._environment = {**os.environ, 'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
        if shutil.which('ccache'):  # compiles only changed files anew, also those of tests in temporary folders
            compiler = f'ccache {os.environ.get("CXX", "g++")}'
            self._environment.update(CXX=compiler, CCACHE_DIR=str(COPIES / 'ccache'), CCACHE_BASEDIR=str(folder), CCACHE_NOHASHDIR='1')

    def update(self):
        """Make the copy equal to the checkout, files that git ignores left out; those that are equal keep their time of change."""
        listed = _git('ls-files', '-co', '--exclude-standard', '-z')
        names = {name for name in listed if (ROOT / name).is_file()}
        for name in names:
            source, target = ROOT / name, self.folder / name
            if not (target.is_file() and source.read_bytes() == target.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        others = {str(path.relative_to(self.folder)) for path in self.folder.rglob('*') if not path.is_dir()} - names
        for name in others - set(_git('check-ignore', '-z', '--stdin', names=others)):  # what is ignored was compiled in the copy
            (self.folder / name).unlink()

    def build(self):
        """Compile the engine; return a checksum of the libraries, or None if it does not compile."""
        status, output = self._run([sys.executable, 'setup.py', '--quiet', 'build_ext', '--inplace'], BUILD_LIMIT)
        if status != 0 or 'the compiler failed' in output:
            return None
        return hashlib.sha256(b''.join(path.read_bytes() for path in sorted((self.folder / 'bmx_melius').glob('*.so')))).hexdigest()

    def failing(self, tests, limit, *options):
        """Run tests for so many seconds at most; return the names of those that fail, without parameters.

        The last one is a sentence that does not begin with ``tests/`` if pytest does not end as it does after failing tests.
        """
        workers = self._workers if len(tests) > 1 else 0  # which import MXNet, too
        command = [sys.executable, '-W', 'ignore', '-m', 'pytest', '-q', '-n', str(workers), '--dist', 'worksteal', '-rfE', '--tb=no']
        command += ['-p', 'no:cacheprovider', '--hypothesis-profile', 'unshrunk', *options, *tests]
        status, output = self._run(command, limit)
        if status is None:
            return [f'pytest does not end within {limit} seconds']
        if status == 4:
            sys.exit(f'error: pytest does not find the tests:\n{output}')
        failed = re.findall(r'^(?:FAILED|ERROR) (\S+\.py(?:::[^\s\[]+)?)', output, re.MULTILINE)
        ended = status in (0, 5) or (failed and (status == 1 or '-x' in options))  # other tests may not have run, as -x wants
        return [*dict.fromkeys(failed), *([] if ended else [f'pytest ends with status {status}'])]

    def _run(self, command, limit):
        """Run a command with a limit in seconds: (exit status or None, output)."""
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True, 'errors': 'replace'}
        process = subprocess.Popen(command, cwd=self.folder, env=self._environment, start_new_session=True, **pipes)
        try:
            output = process.communicate(timeout=limit)[0]
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return None, ''
            raise
        return process.returncode, output


def judge(copy, place, source, stage, original):
    """Run the tests of a stage on a mutant: verdict and note. `original` is the checksum of the engine without mutants."""
    target, mutated = copy.folder / place.path, place.mutated(source)
    try:
        target.write_bytes(mutated)
        if target.suffix == '.py':
            try:
                compile(mutated, place.path, 'exec')
            except SyntaxError as error:
                return 'invalid', str(error)
        else:
            built = copy.build()
            if built in (None, original):
                return ('equivalent', 'the same machine code') if built else ('invalid', 'does not compile')
        tests = tests_of(place.path)[STAGES.index(stage)]
        for group in [tests] if stage == 'part' else [[test] for test in tests]:
            failed = copy.failing(group, LIMITS[stage], '-x') if group else []
            if failed:  # confirm() runs the first word
                crash = not failed[0].startswith('tests/') and len(group) == 1
                return 'caught', f'{group[0]} {failed[0]}' if crash else failed[0]
        return 'survived', ''
    finally:
        target.write_bytes(source)


def read_results():
    """Return the rows of the results, by seed, language and change."""
    if not RESULTS.exists():
        return {}
    with open(RESULTS, newline='') as file:
        return {(row['seed'], row['language'], row['place'].rpartition(':')[0], row['change']): row for row in csv.DictReader(file)}


def write_results(rows):
    """Replace the file of results."""
    scratch = RESULTS.with_suffix('.new')
    with open(scratch, 'w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows.values())
    scratch.replace(RESULTS)


def confirm(copy, keys):
    """Run what failed without mutants; the rows of those that fail as well become survivors.

    Where a test crashed or took too long, its file is run. If many files ran at once, it is not known which one: the row stays as it is.
    """
    caught = [row['note'] for key, row in read_results().items() if key in keys and row['verdict'] == 'caught']
    noted = {note: note.split()[0] for note in caught if note.startswith('tests/')}
    tests = sorted(set(noted.values()))
    if not copy.build():
        sys.exit('error: the engine does not compile without mutants')
    failing = copy.failing(tests, 3600) if tests else []
    also = {test for test in tests if any(name == test or name.startswith(f'{test}::') for name in failing)}
    unexpected = [name for name in failing if not any(name == test or name.startswith(f'{test}::') for test in tests)]
    if unexpected:
        sys.exit(f'error: without mutants: {", ".join(unexpected)}; no verdict is confirmed')
    rows = read_results()
    for row in rows.values():
        if noted.get(row['note']) in also:
            row.update(verdict='survived', note=f'{row["note"]} fails without it as well')
    write_results(rows)
    print(f'without mutants: {len(tests) - len(also)} of {len(tests)} tests pass', *sorted(also), sep='\n  ')
    if len(noted) < len(set(caught)):
        print('not confirmed, because the file of the test is not known:', *sorted(set(caught) - set(noted)), sep='\n  ')


def sample(language, options):
    """Yield (key of a row, drawn place, its row or an empty one) until there are enough that compile and are not equivalent."""
    left = options.number
    for drawn in draw(language, options.seed):
        place, _, _, change = drawn
        key = (str(options.seed), language, place.path, change)
        yield key, drawn, read_results().get(key, {'verdict': '', 'tests': ''})
        row = read_results().get(key, {'verdict': ''})  # it may have been judged, or edited by hand
        left -= row['verdict'] not in ('equivalent', 'invalid')
        if left == 0:
            return


def mutate(language, options):
    """Judge the mutants of a language."""
    copy = Copy(COPIES / language, options.workers)
    copy.update()
    original = copy.build()
    if not original:
        sys.exit('error: the engine does not compile without mutants')
    for stage in STAGES:
        for key, (place, source, where, change), row in sample(language, options):
            if stage == STAGES[0]:
                wanted = row['verdict'] == 'survived' if options.survivors else not row['verdict']
            else:
                wanted = row['verdict'] == 'survived' and row['tests'] == STAGES[0]
            if wanted and where.startswith(tuple(options.place) or ''):
                start = time.monotonic()
                verdict, note = judge(copy, place, source, stage, original)
                row = dict(zip(COLUMNS, (options.seed, language, place.kind, where, change, stage, verdict, note)))
                write_results({**read_results(), key: row})
                print(f'{verdict:10} {time.monotonic() - start:4.0f} s  {stage:7} {where}  {change}  {note}', flush=True)
    confirm(copy, {key for key, _, _ in sample(language, options)})


def main():
    """Draw and judge mutants, or list them."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--seed', type=int, default=1, help='which places are drawn (default: 1)')
    parser.add_argument('--number', type=int, default=30, help='mutants of each language that compile and are not equivalent (default: 30)')
    parser.add_argument('--language', choices=sorted(PLACES), help='default: both')
    parser.add_argument('--list', action='store_true', help='only print the places that are drawn, with their verdicts')
    parser.add_argument('--survivors', action='store_true', help='only judge those again that have survived')
    parser.add_argument('--place', action='append', default=[], help='only judge places that begin with PATH or PATH:LINE')
    parser.add_argument('--workers', type=int, default=2, help='processes of pytest-xdist (default: 2)')
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes of a mutant end, too
    survived = 0
    for language in [options.language] if options.language else sorted(PLACES, reverse=True):
        if not options.list:
            mutate(language, options)
        verdicts = collections.Counter()
        for _, (place, _, where, change), row in sample(language, options):
            verdicts[row['verdict'] or 'not judged'] += 1
            if options.list:
                print(f'{row["verdict"] or "-":10} {place.kind:10} {where}  {change}')
        survived += verdicts['survived']
        print(f'{language}:', ', '.join(f'{number} {verdict}' for verdict, number in sorted(verdicts.items())))
    return 1 if survived and not options.list else 0


if __name__ == '__main__':
    sys.exit(main())
