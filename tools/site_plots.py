"""Draw docs/figures/accuracy.svg, latency.svg, int8.svg and trained.svg, the plots of published and measured figures in the documentation.

Run ``python tools/site_plots.py`` after a change here, of model_zoo/published.json, of the tables of benchmarks/README.md, or of
int8_accuracy.json or trained_networks.json in benchmarks, from which the numbers are read. The background is light, so that the plots are
readable in a dark theme.
"""

import json
import pathlib
import re
import textwrap

import matplotlib
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / 'docs' / 'figures'
BLUE, GREEN, ORANGE, SOFT = '#2f5fb3', '#2b7a4b', '#b4581a', '#5b6773'
STYLE = {'svg.fonttype': 'none', 'svg.hashsalt': 'bmx-melius', 'figure.facecolor': '#fbfbfd', 'axes.facecolor': '#fbfbfd', 'font.size': 9}

# Group of a network -> color. Labels beside the points: name -> (dx, dy, anchor), where the default place is taken.
GROUPS = {
    'MeliusNet': BLUE,
    'other networks with one binary base': ORANGE,
    'several binary bases': '#8a3fa0',
    '1 or 2 bits, or ternary weights': '#6b7280',
    '32 bits': GREEN,
}
PLACES = {
    'MeliusNetA': (-4, -8, 'right'),
    'MeliusNetB': (-6, 0, 'right'),
    'MeliusNetC': (-6, 0, 'right'),
    'XNOR-Net++18': (-6, -2, 'right'),
    'Bi-RealNet34': (-6, -4, 'right'),
    'Strong Baseline18': (-6, -4, 'right'),
    'MobileNet-v1 0.5': (-6, -3, 'right'),
    'MobileNet-v1 0.75': (6, -7, 'left'),
    'MobileNet-v1 1.0': (6, -7, 'left'),
    'DoReFa18': (6, 2, 'left'),
    'LQ-Net18': (-5, 4, 'right'),
    'ABC-Net18': (-6, 0, 'right'),
    'BDenseNet28': (6, -4, 'left'),
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
    figure = Figure(figsize=(7.5, 7.2), layout='constrained')
    axes, outside = figure.subplots(), []
    for group, color in GROUPS.items():
        axes.scatter([], [], color=color, label=group)
    for name, group, ops, accuracy in published_points():
        if ops > 9 or accuracy < 50:
            outside.append(f'{name} ({ops:g}, {accuracy:g} %)')
            continue
        axes.scatter(ops, accuracy, color=GROUPS[group], alpha=0.9)
        dx, dy, anchor = PLACES.get(name, (6, -3, 'left'))
        weight = 'bold' if group == 'MeliusNet' else 'normal'
        axes.annotate(name, (ops, accuracy), (dx, dy), textcoords='offset points', ha=anchor, fontsize=8, weight=weight)
    axes.set(xscale='log', xlim=(1, 9), ylim=(50, 72), xticks=range(1, 10), yticks=range(50, 73, 2), ylabel='top-1 accuracy on ImageNet, %')
    axes.set_xlabel('operations, 10\u2078 (BOPs / 64 + FLOPs)\n\n' + textwrap.fill('outside: ' + ', '.join(outside), 100))
    axes.xaxis.set_major_formatter('{x:g}')
    axes.minorticks_off()
    axes.set_axisbelow(True)
    axes.grid(alpha=0.5)
    figure.legend(loc='outside upper center', ncols=3, frameon=False)
    return figure


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
    times = [[time for name, index, time in measured if (name, index) == (row, place)][which] for _, row, which, place, _ in BARS]
    figure = Figure(figsize=(7.5, 4.2), layout='constrained')
    axes = figure.subplots()
    bars = axes.barh([label for label, *_ in BARS], times, color=[color for *_, color in BARS])
    axes.bar_label(bars, [f'{time:.3g}' for time in times], padding=4)
    axes.set(xscale='log', xlim=(1, 200), xticks=[])
    axes.minorticks_off()
    figure.suptitle(f'Run time of one image, ms (logarithmic axis)\n{PROCESSOR}', fontsize='medium')
    axes.invert_yaxis()
    axes.spines[['top', 'right', 'bottom']].set_visible(False)
    return figure


# Forms of a network in benchmarks/int8_accuracy.json: label and marker.
FORMS = {'float': ('float32', 'o'), 'half': ('half precision', '^'), 'int8 mse': ('8-bit integers', 's')}


def plot_int8():
    """Plot the accuracy of packed networks in three forms over their size and time; error bars are intervals of 95 %."""
    rows = json.loads((ROOT / 'benchmarks' / 'int8_accuracy.json').read_text(encoding='utf-8'))['networks']
    colors = dict(zip(dict.fromkeys(row['network'] for row in rows), matplotlib.colormaps['tab10'].colors))
    datasets = list(dict.fromkeys(row['dataset'] for row in rows))
    figure = Figure(figsize=(7.5, 3.3 * len(datasets)), layout='constrained')
    grid = figure.subplots(len(datasets), 2, sharey='row', squeeze=False)
    for row in rows:
        forms = [row['forms'][form] for form in FORMS]
        accuracies = [100 * form['accuracy'] for form in forms]
        for axes, places in zip(
            grid[datasets.index(row['dataset'])], ([form['bytes'] / 1e3 for form in forms], [1e3 * form['milliseconds'] for form in forms])
        ):
            axes.plot(places, accuracies, color=colors[row['network']], linewidth=0.8)
            for place, accuracy, form, (_, marker) in zip(places, accuracies, forms, FORMS.values()):
                limits = [[accuracy - 100 * form['interval'][0]], [100 * form['interval'][1] - accuracy]]
                axes.errorbar(place, accuracy, limits, color=colors[row['network']], marker=marker, markersize=5, elinewidth=0.6)
    for dataset, (sizes, times) in zip(datasets, grid):
        images = next(row['images'] for row in rows if row['dataset'] == dataset)
        sizes.set(ylabel=f'top-1 accuracy on {images:,} test {dataset}, %', xlabel='size, kB')
        times.set(xlabel='time of an image, \u00b5s')
        for axes, ticks in ((sizes, (60, 80, 100, 150, 200, 500, 1000, 2000)), (times, (15, 20, 25, 30, 40, 60, 80))):
            axes.set_xscale('log')
            limits = axes.get_xlim()
            axes.set(xticks=ticks, xlim=limits)
            axes.xaxis.set_major_formatter('{x:g}')
            axes.minorticks_off()
            axes.set_axisbelow(True)
            axes.grid(alpha=0.5)
    for name, color in colors.items():
        grid[0][0].plot([], [], color=color, label=name)
    for label, marker in FORMS.values():
        grid[0][0].plot([], [], color=SOFT, marker=marker, linestyle='', label=label)
    figure.legend(loc='outside upper center', ncols=4, frameon=False)
    return figure


def plot_trained():
    """Accuracy of the networks that ship over their size and over the time of an image, in all forms."""
    results = json.loads((ROOT / 'benchmarks' / 'trained_networks.json').read_text())
    figure = Figure(figsize=(7.6, 3.6), layout='constrained')
    axes = figure.subplots(1, 2, sharey=True)
    for network, color in zip(results['networks'], (ORANGE, BLUE, GREEN, '#8a3fa0')):
        for form, found in network['forms'].items():
            accuracy = 100 * found['correct'] / found['images']
            limits = [[accuracy - 100 * found['interval'][0]], [100 * found['interval'][1] - accuracy]]
            marker, fill = TRAINED_FORMS[form.partition(',')[0]], 'none' if 'ONNX' in form else color
            for panel, place in zip(axes, (found['bytes'] / 1e3, 1e3 * found['milliseconds'])):
                panel.errorbar(place, accuracy, limits, color=color, marker=marker, markerfacecolor=fill, markersize=5, elinewidth=0.6)
        axes[0].plot([], [], color=color, label=network['name'])
    for label, marker in TRAINED_FORMS.items():
        axes[0].plot([], [], color=SOFT, marker=marker, linestyle='', label=label)
    axes[0].plot([], [], color=SOFT, marker='o', markerfacecolor='none', linestyle='', label='in ONNX Runtime')
    axes[0].set(xlabel='size, kB', ylabel='top-1 of 10,000 test images, %', xlim=(0, 330))
    axes[1].set(xlabel='time of an image, \u00b5s', xlim=(0, None))
    for panel in axes:
        panel.set_axisbelow(True)
        panel.grid(alpha=0.5)
    figure.legend(loc='outside upper center', ncols=3, frameon=False)
    return figure


PLOTS = {'accuracy.svg': plot_accuracy, 'latency.svg': plot_latency, 'int8.svg': plot_int8, 'trained.svg': plot_trained}
TRAINED_FORMS = {'float': 'o', 'half': '^', 'int8': 's'}


def draw(name, file):
    """Write a plot, the same on every machine, to a path or an open file."""
    with matplotlib.rc_context(STYLE):
        PLOTS[name]().savefig(file, format='svg', metadata={'Date': None, 'Creator': None})


if __name__ == '__main__':
    for name in PLOTS:
        draw(name, FOLDER / name)
