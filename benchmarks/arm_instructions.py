"""Instructions of the inner loops of binary and 8-bit layers on aarch64, and the cycles that a model of processors gives them.

Compiles the kernels with ``aarch64-linux-gnu-g++``, finds their loops in the object code, and prints instructions for 128
multiply-accumulates, loads and branch included. The second table has loops of all methods considered, generated here in assembly language.
If ``llvm-mca`` is installed, both have multiply-accumulates a cycle by its models of processors: all loads hit the first-level cache, and
sums of bytes are not widened. These are not measurements. With ``--layers``, further tables have the instructions that whole layers
execute, traced by ``qemu-aarch64``, for 128 multiply-accumulates, and those of rescaling for 16 results.

Run: ``python benchmarks/arm_instructions.py [--layers] [LLVM_MCA]`` (Debian: g++-aarch64-linux-gnu, qemu-user, llvm-19
with the program llvm-mca-19)
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Dict

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

from support.native_program import FLAGS, INSTRUCTION_SETS, KERNEL_PARTS, build_program  # noqa: E402

# A53 and A72 have no dotprod. Neoverse N1 has the core of the A76, which LLVM 19 gives the model of the A72.
PROCESSORS = (
    'cortex-a53',
    'cortex-a72',
    'cortex-a55',
    'cortex-a510',
    'neoverse-n1',
    'neoverse-n2',
    'neoverse-v1',
    'neoverse-v2',
    'apple-m1',
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of an instruction set.

    Parameters
    ----------
    source : str
        Its file in ``csrc/kernels/arm``, without the ending.
    functions : str
        Pattern of the names of the functions that contain its loops.
    macs : dict
        Mnemonics of instructions -> their multiply-accumulates. For `cnt` and `tbl`: 4 filters of 32 elements, or 16 filters of 4 elements
        for 2 pixels.
    """

    source: str
    functions: str
    macs: Dict[str, int]

    def macs_of(self, loop):
        """Return the multiply-accumulates of an iteration of a loop / 128."""
        return sum(self.macs.get(line.split()[0].rstrip('2'), 0) for line in loop) / 128


KERNELS = {
    'neon': Kernel('binary_neon', r'convolve_block<(8, 3|4, 5)>', {'cnt': 128}),
    'dotprod': Kernel('binary_dotprod', r'add_chunk<2, 2, false>', {'tbl': 128}),
}
INT8_KERNELS = {
    'neon': Kernel('int8_neon', r'Products, [12], [2-9]>', {'smull': 8, 'smlal': 8}),
    'dotprod': Kernel('int8_dotprod', r'Products, [12], [2-9]>', {'sdot': 16}),
    'i8mm': Kernel('int8_i8mm', r'Products, [12], [2-9]>', {'usdot': 16, 'usmmla': 32}),
}
ROUNDS = 100
LAYERS = (  # channels, filters, size of the map, kernel
    *((64, 64, 14, 3), (128, 128, 14, 3), (320, 64, 14, 3), (320, 64, 7, 3), (512, 64, 7, 3), (64, 32, 14, 3)),
    *((64, 64, 14, 1), (256, 16, 14, 1)),
)
INT8_LAYERS = {  # rows of outputs in MeliusNet22: words, blocks, period, taps, pixels
    'stem, 3x3, 3 to 32 channels': (1, 2, 1, 9, 112),
    'stem, 3x3, 8 to 8 channels of each group': (2, 1, 2, 9, 112),
    'stem, 3x3, 4 to 8 channels of each group': (1, 1, 2, 9, 112),
    'transition, 320 to 160 channels': (80, 5, 1, 1, 60),
    'output layer, 512 to 1000 channels': (128, 5, 1, 1, 1),
}
RESCALING = {'rescaling of 320 channels': (0, 20, 1, 1, 28), 'the same with max pooling': (0, 20, 1, 4, 28)}


def output_of(*command):
    """Run a command and return its output."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def loops_of(instruction_set, kernel, folder):
    """Yield the inner loops of a kernel: the name of the function, lines of assembly language, and multiply-accumulates / 128."""
    source, binary = f'bmx_melius/csrc/kernels/arm/{kernel.source}.cc', folder / f'{kernel.source}.o'
    output_of('aarch64-linux-gnu-g++', *FLAGS, *INSTRUCTION_SETS[instruction_set], '-c', source, '-o', binary)
    code = output_of('aarch64-linux-gnu-objdump', '-dC', '--no-show-raw-insn', binary)
    for function in code.split('\n\n'):
        name, places = re.search(kernel.functions, function.splitlines()[0] if function else ''), {}
        if not name:
            continue
        lines = re.findall(r'^ *([0-9a-f]+):\t([^/<\n]*)', function, re.MULTILINE)
        for i, (place, line) in enumerate(lines):
            places[place] = i
            target = re.match(r'(?:b\.\w+|cbn?z\s+\w+,)\s+([0-9a-f]+)', line)
            first = places.get(target[1]) if target else None
            loop = [one for _, one in lines[first : i + 1]] if first is not None else []
            # An outer loop contains the inner ones, which begin later.
            if kernel.macs_of(loop) >= 1 and not any('b.' in one or one.startswith(('b\t', 'cb')) for one in loop[:-1]):
                yield name[0], loop, kernel.macs_of(loop)


def popcount_loop(pixels, vectors, accumulate='add {sum}.16b, {sum}.16b, {x}.16b'):
    """Return the loop of exclusive or, `cnt` and an accumulation, and its multiply-accumulates / 128."""
    sums, free = pixels * vectors, pixels * (vectors + 1) + 2
    lines = [f'ld1r {{v{sums + p}.4s}}, [x{p + 2}], #4' for p in range(pixels)]
    for v in range(0, vectors, 2):
        lines.append(f'ldp q{free - 2}, q{free - 1}, [x1, #{16 * v}]')
        for i in range(2):
            steps = [[], [], []]
            for p in range(pixels):
                x, total = f'v{free + p}', f'v{(v + i) * pixels + p}'
                steps[0].append(f'eor {x}.16b, v{sums + p}.16b, v{free - 2 + i}.16b')
                steps[1].append(f'cnt {x}.16b, {x}.16b')
                steps[2].append(accumulate.format(sum=total, x=x))
            lines += sum(steps, [])
    return lines, sums


def carry_save_loop(pixels, vectors, load, accumulate):
    """Return the loop of carry-save on prefixes (binary_parities_avx512.h), four words: every second weight is inverted."""
    sums = pixels * vectors
    parities, spare = list(range(sums, 2 * sums)), 2 * sums
    words, weights, x = spare + 1, spare + 1 + 2 * pixels, spare + 3 + 2 * pixels
    lines = []
    for pair in range(2):
        for p in range(pixels):
            lines += [one.format(a=words + 2 * p, b=words + 2 * p + 1, p=p + 2) for one in load]
        for v in range(vectors)[:: 1 - 2 * pair]:
            lines.append(f'ldp q{weights}, q{weights + 1}, [x1, #{32 * v}]')
            for p in range(pixels):
                i = v * pixels + p
                lines += [
                    f'eor v{x + p}.16b, v{words + 2 * p}.16b, v{weights}.16b',
                    f'eor v{spare}.16b, v{words + 2 * p + 1}.16b, v{weights + 1}.16b',
                ]
                lines += [f'bsl v{x + p}.16b, v{spare}.16b, v{parities[i]}.16b', f'cnt v{x + p}.16b, v{x + p}.16b']
                lines.append(accumulate.format(sum=f'v{i}', x=f'v{x + p}'))
                parities[i], spare = spare, parities[i]
    return lines, 4 * sums


def lookup_loop(registers, tables, steps, bits):
    """Return the loop of lookups for 2 pairs of pixels and 64 filters, in tables of 1 or 2 registers that `tables` loads."""
    weights = 24 + 2 * registers
    lines, free = [], weights + 2
    for step in range(steps):
        for p in range(2):
            lines += [one.format(t=24 + registers * p, u=25 + registers * p, p=p + 2) for one in tables]
        for v in range(0, 4, 2):
            lines.append(f'ldp q{weights}, q{weights + 1}, [x1, #{16 * v}]')
            for p in range(2):
                table = ', '.join(f'v{24 + registers * p + i}.16b' for i in range(registers))
                into = [(v + i) * 2 + p if step == 0 else (free + i) % 32 for i in range(2)]
                lines += [f'tbl v{into[i]}.16b, {{{table}}}, v{weights + i}.16b' for i in range(2)]
                if step:
                    lines += [f'add v{(v + i) * 2 + p}.16b, v{(v + i) * 2 + p}.16b, v{into[i]}.16b' for i in range(2)]
    for i in range(8):
        lines += [f'add v{8 + i}.16b, v{8 + i}.16b, v{i}.16b', f'usra v{16 + i}.16b, v{i}.16b, #4']
    return lines, 8 * steps * bits / 4


def methods():
    """Return the loops of all methods: a name -> lines without the branch, multiply-accumulates / 128."""
    add, dot = 'add {sum}.16b, {sum}.16b, {x}.16b', 'udot {sum}.4s, {x}.16b, v31.16b'
    broadcast, replicated = ['ld1r {{v{a}.4s}}, [x{p}], #4', 'ld1r {{v{b}.4s}}, [x{p}], #4'], ['ldp q{a}, q{b}, [x{p}], #32']
    indirect = ['ldrh w10, [x{p}], #2', 'ldr q{t}, [x11, x10]']
    smmla = [
        *(f'ldr q{i}, [x{2 + i // 4}], #16' for i in range(8)),
        *(f'smmla v{8 + i}.4s, v{i // 4}.16b, v{4 + i % 4}.16b' for i in range(16)),
    ]
    return {
        'cnt, add, 3 pixels x 32 filters': popcount_loop(3, 8),
        'cnt, udot': popcount_loop(3, 8, dot),
        'carry-save, 2 x 16': carry_save_loop(2, 4, broadcast, add),
        'carry-save, words stored 4 times': carry_save_loop(2, 4, replicated, add),
        'carry-save, udot': carry_save_loop(2, 4, broadcast, dot),
        'tbl, tables by offsets, 4 x 64': lookup_loop(1, indirect, 6, 4),
        'tbl, tables in a row': lookup_loop(1, ['ldr q{t}, [x{p}], #16'], 6, 4),
        'tbl of 2 registers, 5 bits, in a row': lookup_loop(2, ['ldp q{t}, q{u}, [x{p}], #32'], 7, 5),
        'smmla, 4 x 4 registers': (smmla, 16 / 4),
    }


def rate(mca, processor, lines, count, folder):
    """Return multiply-accumulates a cycle, a text, by the model of llvm-mca."""
    code = [re.sub(r'^(b\.\w+|cbn?z\s+\w+,).*', 'b.ne .L1', line.strip()) for line in lines]
    (folder / 'loop.s').write_text('\n'.join(['.L1:', *code]) + '\n')
    flags = ['-mtriple=aarch64', f'-mcpu={processor}', '-mattr=+dotprod,+i8mm', f'-iterations={ROUNDS}']
    cycles = int(re.search(r'Total Cycles: *(\d+)', output_of(mca, *flags, folder / 'loop.s'))[1])
    return f'{128 * count * ROUNDS / cycles:.0f}'


def print_table(title, rows, mca, folder):
    """Print rows of (name, lines, multiply-accumulates / 128)."""
    print('\n' + ' | '.join([title, 'instructions', *(PROCESSORS if mca else ())]))
    for name, lines, count in rows:
        cells = [rate(mca, processor, lines, count, folder) for processor in PROCESSORS] if mca else []
        print(' | '.join([name, f'{len(lines) / count:.2f} ({len(lines)} for {count:g} x 128)', *cells]), flush=True)


def executed(program, *arguments):
    """Return the number of instructions that a program executes."""
    command = ['qemu-aarch64', '-singlestep', '-d', 'exec,nochain', '-D', '/dev/stdout', program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        count = sum(line.startswith(b'Trace') for line in process.stdout)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return count


def print_layers(folder):
    """Print the instructions of layers."""
    flags = [*FLAGS, '-static']

    def count(source, sets, arguments, amount):
        """Return the instructions of a run for `amount` of what it computes: those of two runs without those of one."""
        program = build_program(folder, source, KERNEL_PARTS, flags, ['aarch64-linux-gnu-g++'], INT8_KERNELS)
        counts = [executed(program, one, *arguments, 2) - executed(program, one, *arguments, 1) for one in sets]
        return [f'{number / amount:.1f}' for number in counts]

    print('\n' + ' | '.join(['channels, filters, size, kernel', *KERNELS]))
    for layer in LAYERS:
        channels, filters, size, kernel = layer
        amount = channels * filters * size**2 * kernel**2 / 128
        print(' | '.join([', '.join(map(str, layer)), *count('benchmarks/arm_layer.cc', KERNELS, layer, amount)]), flush=True)
    sets = ['reference', *INT8_KERNELS]
    print('\n' + ' | '.join(['8-bit layer', *sets]))
    for name, (words, blocks, period, taps, pixels) in {**INT8_LAYERS, **RESCALING}.items():
        amount = pixels * blocks * (64 * words * taps / 128 if words else 1)
        numbers = count('benchmarks/arm_int8_layer.cc', sets, (words, blocks, period, taps, pixels), amount)
        print(' | '.join([name, *numbers]), flush=True)


def main():
    """Print the tables."""
    names = [one for one in sys.argv[1:] if one != '--layers']
    mca = shutil.which(names[0] if names else 'llvm-mca-19') or shutil.which('llvm-mca')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for title, kernels in (('kernel', KERNELS), ('kernel of 8-bit layers', INT8_KERNELS)):
            loops = [(f'{one}: {name}', *loop) for one, kernel in kernels.items() for name, *loop in loops_of(one, kernel, folder)]
            different = {(name, len(lines), count): (name, lines, count) for name, lines, count in loops}  # some are there twice
            print_table(title, different.values(), mca, folder)
        branch = ['cmp x1, x9', 'b.ne .L1']
        print_table('method', [(name, [*lines, *branch], count) for name, (lines, count) in methods().items()], mca, folder)
        if '--layers' in sys.argv:
            print_layers(folder)


if __name__ == '__main__':
    main()
