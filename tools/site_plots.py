"""Plots of published and measured figures for the documentation site, as SVG.

The numbers are read from model_zoo/published.json and from the tables of benchmarks/README.md.
"""

import json
import math
import pathlib
import re

from svg import BLUE, GREEN, INK, ORANGE, RULE, SOFT, Drawing

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Group of a network -> color. Labels beside the points: name -> (dx, dy, anchor), where the default place is taken.
GROUPS = {
    'MeliusNet': BLUE,
    'other networks with one binary base': ORANGE,
    'several binary bases': '#8a3fa0',
    '1 or 2 bits, or ternary weights': '#6b7280',
    '32 bits': GREEN,
}
PLACES = {
    'MeliusNetA': (-8, 10, 'end'),
    'MeliusNetB': (-8, 0, 'end'),
    'MeliusNetC': (-8, 0, 'end'),
    'XNOR-Net++18': (-8, 2, 'end'),
    'Bi-RealNet34': (-8, 6, 'end'),
    'Strong Baseline18': (-8, 6, 'end'),
    'MobileNet-v1 0.5': (-8, 4, 'end'),
    'MobileNet-v1 0.75': (8, 9, 'start'),
    'MobileNet-v1 1.0': (8, 9, 'start'),
    'DoReFa18': (8, -3, 'start'),
    'LQ-Net18': (-7, -5, 'end'),
    'BDenseNet28': (8, 6, 'start'),
}


def published_points():
    """Return (name, group, operations in 1e8, top-1 accuracy in percent) of the networks in tables 1, 3 and 4, as printed."""
    tables = {table['number']: table['rows'] for table in json.loads((ROOT / 'model_zoo' / 'published.json').read_text())['tables']}
    points = [(row['name'], 'MeliusNet', row['ops_e8'], row['top1_percent']) for row in tables[1]]
    sections = {
        'low-bit quantization': '1 or 2 bits, or ternary weights',
        'multiple binary bases': 'several binary bases',
        'one binary base': 'other networks with one binary base',
        '32-bit baseline': '32 bits',
    }
    for row in tables[3]:
        if row['method'].startswith('MeliusNet') or 'our baseline' in row['method']:
            continue
        name = row['method'].replace('32-bit baseline', 'ResNet')
        depths = ('28', '37') if name == 'BDenseNet' else ('18', '34')
        for size, depth in zip(('small', 'large'), depths):
            points.append((name + depth, sections[row['section']], row[size]['ops_e8'], row[size]['top1_percent']))
    points += [
        (row['architecture'], '32 bits', row['ops_e8'], row['top1_percent']) for row in tables[4] if 'MobileNet' in row['architecture']
    ]
    return [(name, group, float(ops.strip('~')), float(accuracy)) for name, group, ops, accuracy in points if ops and accuracy]


def plot_accuracy():
    """Plot the published accuracy over the published operations, on a logarithmic axis; points outside it are listed below it."""
    drawing = Drawing(720, 690, 'Top-1 accuracy on ImageNet over operations, as printed in the MeliusNet paper')
    left, top, width, height = 50, 84, 640, 520
    low, high, first, last = 50, 72, math.log(1), math.log(9)

    def place(ops, accuracy):
        return left + width * (math.log(ops) - first) / (last - first), top + height * (high - accuracy) / (high - low)

    for number, (group, color) in enumerate(GROUPS.items()):
        x, y = 30 + 235 * (number % 3), 24 + 20 * (number // 3)
        drawing.dot(x, y - 4, color)
        drawing.text(x + 9, y, group, 12)
    for accuracy in range(low, high + 1, 2):
        y = place(1, accuracy)[1]
        drawing.line(left, y, left + width, y, RULE, 0.8)
        drawing.text(left - 8, y + 4, str(accuracy), 12, 'end', SOFT)
    for ops in range(1, 10):
        x = place(ops, low)[0]
        drawing.line(x, top, x, top + height, RULE, 0.8)
        drawing.text(x, top + height + 18, str(ops), 12, 'middle', SOFT)
    drawing.text(left + width / 2, top + height + 38, 'operations, 10\u2078 (BOPs / 64 + FLOPs)', 13, 'middle')
    drawing.text(20, top - 14, 'top-1 accuracy on ImageNet, %', 13)
    outside = []
    for name, group, ops, accuracy in published_points():
        x, y = place(ops, accuracy)
        if ops > math.exp(last) or accuracy < low:
            outside.append(f'{name} ({ops:g}, {accuracy:g} %)')
            continue
        drawing.dot(x, y, GROUPS[group])
        dx, dy, anchor = PLACES.get(name, (8, 4, 'start'))
        drawing.text(x + dx, y + dy, name, 11, anchor, INK, 'bold' if group == 'MeliusNet' else 'normal')
    drawing.text(left + width / 2, top + height + 64, 'outside: ' + ', '.join(outside), 11.5, 'middle', SOFT)
    return drawing


def measured_rows():
    """Return (row, milliseconds) of the first table of whole networks in benchmarks/README.md, one for each figure of a row."""
    text = (ROOT / 'benchmarks' / 'README.md').read_text(encoding='utf-8')
    table = re.search(r'^\| \| ms \| \| ms \|\n.*\n((?:\|.*\n)+)', text, re.MULTILINE)[1]
    cells = [[cell.strip().strip('*') for cell in line.strip('|').split('|')] for line in table.splitlines()]
    rows = []
    for name, times in [row[:2] for row in cells] + [row[2:] for row in cells]:
        rows += [(name, index, float(time)) for index, time in enumerate(times.split(', '))]
    return rows


# Bars of the plot: label, row of the table (the row "the same, int8" of each runtime by its number) and place among its figures, color.
BARS = (
    ('meliusnet22 packed', 'meliusnet22', 0, 0, BLUE),
    ('meliusnet22 packed, two threads', 'two threads', 0, 0, BLUE),
    ('meliusnet22 packed, inside MXNet', 'inside MXNet', 0, 0, BLUE),
    ('meliusnet22 float, MXNet, fastest form', 'MXNet float, thresholds folded', 0, 0, SOFT),
    ('meliusnet22 float, MXNet, as exported', 'MXNet float, as exported', 0, 0, SOFT),
    ('meliusnet22, Larq Compute Engine, best', 'Larq Compute Engine, default, best', 0, 1, ORANGE),
    ('mobilenet1.0 float, MXNet fused', 'MXNet mobilenet1.0, fused', 0, 1, GREEN),
    ('mobilenet1.0 float, ONNX Runtime', 'ONNX Runtime mobilenet 0.5, 0.75, 1.0', 0, 2, GREEN),
    ('mobilenet1.0 int8, ONNX Runtime', 'the same, int8', 0, 2, GREEN),
    ('mobilenet1.0 float, LiteRT', 'LiteRT mobilenet 0.5, 0.75, 1.0', 0, 2, GREEN),
    ('mobilenet1.0 int8, LiteRT', 'the same, int8', 1, 2, GREEN),
)
PROCESSOR = 'Intel Xeon (Emerald Rapids), AVX-512; one thread unless named, one image, 224 x 224'


def plot_latency():
    """Plot measured run times as bars on a logarithmic axis."""
    measured = measured_rows()
    drawing = Drawing(720, 64 + 30 * len(BARS) + 22, 'Run time of one image in milliseconds')
    drawing.text(20, 26, 'Run time of one image, ms (logarithmic axis)', 14, weight='bold')
    drawing.text(20, 45, PROCESSOR, 12, color=SOFT)
    left, width, lowest, highest = 290, 370, math.log(1), math.log(200)
    for number, (label, row, which, place, color) in enumerate(BARS):
        time = [time for name, index, time in measured if name == row and index == place][which]
        y = 62 + 30 * number
        drawing.text(left - 10, y + 15, label, 12, 'end')
        drawing.box(left, y, width * (math.log(time) - lowest) / (highest - lowest), 21, color, color)
        drawing.text(left + width * (math.log(time) - lowest) / (highest - lowest) + 6, y + 15, f'{time:.3g}', 12)
    return drawing


PLOTS = {'accuracy.svg': plot_accuracy, 'latency.svg': plot_latency}
