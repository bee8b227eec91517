"""Draw docs/figures/*.svg: targets of export, data layouts of the engine, the packed format, and the plots of `site_plots`.

Run ``python tools/site_figures.py`` after a change here, of model_zoo/published.json or of the results in benchmarks/README.md. The
drawings have a light background, so that they are readable in a dark theme.
"""

from site_plots import PLOTS, ROOT
from svg import BLUE, GRAY, GREEN, INK, LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE, ORANGE, PAPER, SOFT, Drawing

FOLDER = ROOT / 'docs' / 'figures'


def draw_path():
    """Draw the way of a network from Gluon to the engine."""
    drawing = Drawing(720, 236, 'From a Gluon network to the engine')
    stages = (
        ('Gluon network', ('net.export',), 'stock operators,', 'layers leave marks', LIGHT_ORANGE),
        ('exported pair', ('bmx-melius convert',), 'one node for each', 'operator of MXNet', LIGHT_ORANGE),
        ('program', ('load',), 'one array of words:', 'operations and weights', LIGHT_BLUE),
        ('plan', ('run',), 'fused steps, buffers,', 'prepared weights', LIGHT_GREEN),
    )
    for number, (name, (arrow,), first, second, color) in enumerate(stages):
        x = 16 + 178 * number
        drawing.box(x, 60, 118, 46, color, text=name, size=13)
        drawing.text(x, 126, first, 11, color=SOFT)
        drawing.text(x, 141, second, 11, color=SOFT)
        if number < 3:
            drawing.line(x + 121, 83, x + 174, 83, arrow=True)
            drawing.text(x + 148, 50, arrow, 10.5, 'middle', mono=True)
    drawing.text(16, 24, 'What happens to a network', 14, weight='bold')
    for number, (name, where) in enumerate(
        (('MXNet', 'SymbolBlock, Module'), ('Python', 'bmx_melius.Session'), ('C and C++', 'csrc/api/bmx_melius.h'))
    ):
        x = 190 + 178 * number
        drawing.box(x, 176, 164, 40, GRAY, text='', size=12)
        drawing.text(x + 82, 193, name, 12.5, 'middle', weight='bold')
        drawing.text(x + 82, 208, where, 11, 'middle', SOFT, mono=True)
        drawing.line(610, 148, x + 82, 174, arrow=True)
    drawing.text(16, 200, 'run by the engine in', 12)
    return drawing


# Questions about where a network will run, and the target if the answer is yes: name and command or class.
TARGETS = (
    ('a processor without an operating system?', 'C99 for microcontrollers', 'bmx-melius export-c'),
    ('a browser, or Node.js?', 'WebAssembly', 'make wasm'),
    ('another runtime, in float arithmetic?', 'ONNX model', 'bmx-melius export-onnx'),
    ('images, on a machine without Python?', 'program bmx-classify', 'cmake -DBMX_CLASSIFY=ON'),
    ('a program in C or C++?', 'library for C and C++', 'libbmx_melius, bmx_melius.h'),
    ('requests over HTTP?', 'inference service', 'bmx-melius serve'),
    ('a large set of images?', 'Parquet files', 'bmx-melius score'),
)


def draw_targets():
    """Draw the questions that lead from an exported network to the way to run it."""
    row = 58
    drawing = Drawing(720, 220 + row * (len(TARGETS) + 1), 'Where a trained network will run, and what to use')

    def question(y, text):
        drawing.box(20, y, 320, 38, LIGHT_BLUE, BLUE, text, 12.5)

    def target(y, name, command):
        drawing.box(430, y - 2, 270, 42, LIGHT_GREEN, GREEN)
        drawing.text(565, y + 14, name, 12.5, 'middle', weight='bold')
        drawing.text(565, y + 31, command, 11, 'middle', SOFT, mono=True)

    def answer(y, right, down):
        drawing.line(342, y + 19, 426, y + 19, arrow=True)
        drawing.text(384, y + 13, right, 11.5, 'middle', SOFT)
        drawing.line(180, y + 40, 180, y + row - 2, arrow=True)
        drawing.text(188, y + 53, down, 11.5, color=SOFT)

    drawing.text(20, 28, 'Where will the network run?', 14, weight='bold')
    drawing.box(20, 44, 320, 38, LIGHT_ORANGE, ORANGE, 'exported network: -symbol.json, -0000.params', 12.5)
    drawing.line(180, 84, 180, 100, arrow=True)
    drawing.box(20, 102, 320, 38, LIGHT_ORANGE, ORANGE)
    drawing.text(180, 126, 'bmx-melius convert', 12.5, 'middle', mono=True)
    drawing.line(180, 142, 180, 158, arrow=True)
    question(160, 'has it become one packed operator?')
    target(160, 'MXNet only', 'SymbolBlock.imports')
    answer(160, 'no', 'yes')
    for number, (text, name, command) in enumerate(TARGETS):
        y = 160 + row * (number + 1)
        question(y, text)
        target(y, name, command)
        if number < len(TARGETS) - 1:
            answer(y, 'yes', 'no')
    last = 160 + row * len(TARGETS)
    drawing.line(342, last + 19, 426, last + 19, arrow=True)
    drawing.text(384, last + 13, 'yes', 11.5, 'middle', SOFT)
    drawing.line(180, last + 40, 180, last + row + 19)
    drawing.text(188, last + 53, 'no', 11.5, color=SOFT)
    drawing.line(180, last + row + 19, 426, last + row + 19, arrow=True)
    target(last + row, 'Python, with MXNet or without it', 'bmx_melius.Session')
    return drawing


def draw_packing():
    """Draw how a map of floats becomes words of bits."""
    drawing = Drawing(720, 322, 'A map of 40 channels as words of bits')
    drawing.text(20, 28, 'A map of 40 channels, pixel by pixel (NHWC)', 14, weight='bold')
    for pixel in range(3):
        x = 20 + 226 * pixel
        drawing.box(x, 44, 214, 34, LIGHT_ORANGE, ORANGE)
        drawing.text(x + 107, 65, f'pixel {pixel}: channels 0 to 39, float32', 11.5, 'middle')
    drawing.text(704, 66, '…', 14, 'middle')
    drawing.line(127, 80, 127, 112, arrow=True)
    drawing.text(140, 101, '(x ≥ threshold[c]) ≠ flip[c], one comparison for BatchNorm and sign', 12, color=SOFT)
    drawing.text(20, 140, 'Two words of 32 bits for each pixel', 14, weight='bold')
    bits = '1011001110001011011100101100101001101000'
    for bit, value in enumerate(bits):
        x = 20 + 12.5 * bit + (14 if bit >= 32 else 0)
        drawing.box(x, 154, 12.5, 24, LIGHT_BLUE if value == '1' else PAPER, BLUE, value, 11)
    for bit in range(40, 53):
        drawing.box(34 + 12.5 * bit, 154, 12.5, 24, GRAY, SOFT, '0', 11)
    drawing.text(702, 171, '…', 12, color=SOFT)
    drawing.text(20, 196, 'bit 0 = channel 0', 11.5, color=SOFT)
    drawing.text(434, 196, 'bit 0 = channel 32', 11.5, color=SOFT)
    drawing.text(712, 196, 'beyond channel 39: 0', 11.5, 'end', SOFT)
    drawing.text(20, 230, 'Expanded for the kernel, a band of rows at a time, with the padding', 14, weight='bold')
    for number, (name, unit) in enumerate(
        (
            ('AVX-512, plain C++', '4 bytes: 1 bit an element'),
            ('AVX2', '8 bytes: 4 elements in a byte'),
            ('AMX', '32 bytes: 0 or 1 in a byte each'),
        )
    ):
        x = 20 + 230 * number
        drawing.box(x, 246, 218, 48, LIGHT_GREEN, GREEN)
        drawing.text(x + 109, 266, name, 12, 'middle', weight='bold')
        drawing.text(x + 109, 283, unit, 11, 'middle', SOFT)
    drawing.text(20, 312, 'size of a unit of 32 elements of a packed map', 11.5, color=SOFT)
    return drawing


def draw_xnor():
    """Draw a dot product of signs on bits."""
    drawing = Drawing(720, 250, 'A dot product of signs by exclusive or and popcount')
    drawing.text(20, 28, 'A dot product of n = 8 signs', 14, weight='bold')
    activation, weight = '10110010', '10011011'
    differing = ''.join('01'[a != w] for a, w in zip(activation, weight))
    for row, (label, bits, fill, stroke) in enumerate(
        (
            ('activation bits', activation, LIGHT_BLUE, BLUE),
            ('weight bits', weight, LIGHT_ORANGE, ORANGE),
            ('exclusive or', differing, LIGHT_GREEN, GREEN),
        )
    ):
        y = 48 + 40 * row + (12 if row == 2 else 0)
        drawing.text(150, y + 18, label, 12.5, 'end')
        for place, bit in enumerate(bits):
            drawing.box(162 + 30 * place, y, 30, 27, fill if bit == '1' else PAPER, stroke, bit, 13)
    drawing.line(162, 130, 402, 130, INK)
    count = differing.count('1')
    drawing.line(410, 153, 448, 153, arrow=True)
    drawing.text(456, 157, f'popcount: d = {count} bits differ', 12.5)
    drawing.text(20, 200, f'agreeing bits: n - d = 8 - {count} = {8 - count}, the result of a layer with offset (the default)', 12.5)
    drawing.text(20, 224, f'dot product: n - 2 d = 8 - {2 * count} = {8 - 2 * count}, the result with no_offset', 12.5)
    drawing.text(456, 66, '1 means +1, 0 means -1', 12, color=SOFT)
    drawing.text(456, 106, 'the sums are integers: exact in every', 12, color=SOFT)
    drawing.text(456, 122, 'order and on every instruction set', 12, color=SOFT)
    return drawing


def draw_slabs():
    """Draw the buffer of a Dense Block and an Improvement Block."""
    drawing = Drawing(720, 330, 'Concatenation and addition without copies')
    drawing.text(20, 28, 'One buffer for a stage of MeliusNet: a pixel, NHWC', 14, weight='bold')
    drawing.box(20, 44, 300, 44, GRAY, INK, 'channels of the map x (64)', 12.5)
    drawing.box(320, 44, 160, 44, LIGHT_BLUE, BLUE, '64 new channels', 12.5)
    drawing.box(480, 44, 160, 44, PAPER, SOFT, 'of the next block', 12.5)
    drawing.text(652, 70, '…', 14)
    for x, color, lines in (
        (
            20,
            BLUE,
            ('Dense Block', 'reads x as bits, writes its 64 sums', 'beside x: the concatenation is', 'a range of channels, no copy'),
        ),
        (
            380,
            GREEN,
            (
                'Improvement Block',
                'reads all 128 channels as bits, adds',
                'its 64 sums to the last 64 channels',
                'in place, within its convolution',
            ),
        ),
    ):
        drawing.box(x, 124, 300, 84, PAPER, color)
        drawing.text(x + 12, 142, lines[0], 12.5, weight='bold')
        for number, line in enumerate(lines[1:]):
            drawing.text(x + 12, 160 + 17 * number, line, 12)
    drawing.line(260, 122, 380, 91, BLUE, arrow=True)
    drawing.line(470, 122, 420, 91, GREEN, arrow=True)
    drawing.text(20, 238, 'Early binarization', 14, weight='bold')
    drawing.box(20, 252, 210, 34, LIGHT_BLUE, BLUE, 'rows of sums, in the cache', 12)
    drawing.line(232, 269, 268, 269, arrow=True)
    for number in range(3):
        drawing.box(272 + 148 * number, 252, 138, 34, LIGHT_GREEN, GREEN, f'bits for layer {number + 1}', 12)
    drawing.text(
        20, 310, 'The step that computes a map compares it with the thresholds of every layer that reads it as bits.', 12, color=SOFT
    )
    return drawing


def draw_stem():
    """Draw the ring buffers of the stem."""
    drawing = Drawing(720, 262, 'The stem, depth-first, with ring buffers')
    drawing.text(20, 28, 'The first layers of a network keep only the rows that the next one reads', 14, weight='bold')
    names = (
        ('image', 'planes', GRAY, INK),
        ('convolution 1', 'ring of rows', LIGHT_BLUE, BLUE),
        ('convolution 2', 'ring of rows', LIGHT_BLUE, BLUE),
        ('convolution 3', 'ring of rows', LIGHT_BLUE, BLUE),
        ('max pooling', 'pixels and bits', LIGHT_GREEN, GREEN),
    )
    for number, (name, what, fill, stroke) in enumerate(names):
        x = 20 + 140 * number
        drawing.text(x + 52, 56, name, 12.5, 'middle', weight='bold')
        drawing.text(x + 52, 72, what, 11.5, 'middle', SOFT)
        rows = 9 if number == 0 else 3 if number < 4 else 1
        for row in range(rows):
            drawing.box(x, 86 + 15 * row, 104, 13, fill, stroke)
        if number < 4:
            drawing.line(x + 107, 108, x + 137, 108, arrow=True)
    drawing.text(160, 160, 'A row of the result asks the layer before it for the rows of its window,', 12, color=SOFT)
    drawing.text(160, 177, 'which asks the layer before that. A row that no window reads any more', 12, color=SOFT)
    drawing.text(160, 194, 'is overwritten. The rows of all layers stay in the cache.', 12, color=SOFT)
    drawing.text(20, 246, 'Each thread computes a range of rows of the result, and all rows that it needs for them.', 12, color=SOFT)
    return drawing


def draw_amx():
    """Draw a product of tiles."""
    drawing = Drawing(720, 262, 'A tile instruction of AMX')
    drawing.text(20, 28, 'One tile instruction (AMX): 16 pixels × 64 elements × 16 filters', 14, weight='bold')
    for x, y, width, height, fill, stroke, first, second, across, down in (
        (44, 84, 256, 64, LIGHT_BLUE, BLUE, 'activations', 'bytes 0 or 1', '64 elements', '16 pixels'),
        (352, 60, 90, 128, LIGHT_ORANGE, ORANGE, 'weights', '±1', '16 filters', '64 elements'),
        (546, 84, 130, 64, LIGHT_GREEN, GREEN, 'sums', 'int32, added', '16 filters', '16 pixels'),
    ):
        drawing.box(x, y, width, height, fill, stroke)
        drawing.text(x + width / 2, y + height / 2 - 2, first, 13, 'middle', weight='bold')
        drawing.text(x + width / 2, y + height / 2 + 15, second, 12, 'middle')
        drawing.text(x + width / 2, y - 6, across, 11.5, 'middle', SOFT)
        turned = f'transform="translate({x - 8:g} {y + height / 2:g}) rotate(-90)"'
        drawing.parts.append(f'<text {turned} font-size="11.5" text-anchor="middle" fill="{SOFT}">{down}</text>')
    drawing.text(318, 122, '×', 20, 'middle')
    drawing.line(456, 116, 520, 116, arrow=True)
    drawing.text(20, 220, 'agreeing elements = Σ u w + (number of weights that are -1), with the activation bits u and weights w.', 12.5)
    drawing.text(
        20, 242, 'The second term is added at the end. Rows of a tile are neighbouring pixels, across the ends of map rows.', 12, color=SOFT
    )
    return drawing


def draw_program():
    """Draw the words of a program."""
    drawing = Drawing(720, 338, 'The words of a packed program')
    drawing.text(20, 28, 'A program: little-endian words of 32 bits', 14, weight='bold')
    for x, width, name, fill, stroke in (
        (20, 90, 'header', LIGHT_BLUE, BLUE),
        (110, 90, 'inputs', LIGHT_ORANGE, ORANGE),
        (200, 130, 'operation 0', LIGHT_GREEN, GREEN),
        (330, 130, 'operation 1', LIGHT_GREEN, GREEN),
        (460, 60, '…', PAPER, SOFT),
        (520, 90, 'outputs', LIGHT_ORANGE, ORANGE),
    ):
        drawing.box(x, 44, width, 36, fill, stroke, name, 13)
    drawing.text(20, 112, 'Header: 8 words', 13, weight='bold')
    for number, text in enumerate(("'BMXP'", 'version', 'words', 'CRC-32', 'inputs', 'operations', 'outputs', '0')):
        drawing.box(20 + 85 * number, 122, 85, 30, LIGHT_BLUE, BLUE, text, 12)
        drawing.text(62 + 85 * number, 166, str(number), 11, 'middle', SOFT)
    drawing.text(20, 194, 'Each input: 4 words; each output: 1 word', 13, weight='bold')
    for number, text in enumerate(('rank', 'channels', 'height', 'width')):
        drawing.box(20 + 85 * number, 204, 85, 30, LIGHT_ORANGE, ORANGE, text, 12)
    drawing.box(405, 204, 150, 30, LIGHT_ORANGE, ORANGE, 'number of a value', 12)
    drawing.text(20, 264, 'Each operation', 13, weight='bold')
    x = 20
    for width, text in (
        (66, 'opcode'),
        (106, 'words in record'),
        (74, 'inputs: n'),
        (150, 'n numbers of values'),
        (90, 'attributes'),
        (190, 'arrays, without gaps'),
    ):
        drawing.box(x, 274, width, 30, LIGHT_GREEN, GREEN, text, 12)
        x += width
    drawing.text(20, 324, 'A structure is the same list without the arrays.', 12, color=SOFT)
    return drawing


FIGURES = {
    'path.svg': draw_path,
    'targets.svg': draw_targets,
    'packing.svg': draw_packing,
    'xnor.svg': draw_xnor,
    'slabs.svg': draw_slabs,
    'stem.svg': draw_stem,
    'amx.svg': draw_amx,
    'program.svg': draw_program,
    **PLOTS,
}


def main():
    """Write all figures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(str(draw()), encoding='utf-8')


if __name__ == '__main__':
    main()
