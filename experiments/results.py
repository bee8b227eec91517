"""Results of a study: a table as Markdown, CSV and JSON, a plot of the accuracies, and one of the flips of binary weights."""

import csv
import json
import statistics

from matplotlib.figure import Figure
from scipy import stats

from bmx_melius.files.io import replacing, write_json
from bmx_melius.training.recording.flips import ALL
from bmx_melius.training.saving.stored_checkpoints import read_last

TEST_FILE = 'test.json'  # in the folder of a run: result of `bmx-melius evaluate` on the test images
LATENCY_FILE = 'latency.json'  # in the folder of a study
CONFIDENCE = 0.95
_LEGEND = (
    'Mean ± sample standard deviation over n seeds. Difference: of the top-1 accuracy, on test images if there are any, from the baseline '
    'with the same seed, with the 95 % confidence interval of its mean.'
)

# Columns in their order: key -> (heading, factor, decimals).
COLUMNS = {
    'test_top1': ('test top-1 (%)', 100, 1),
    'best_top1': ('best validation top-1 (%)', 100, 1),
    'difference': ('difference (points)', 100, 1),
    'last_top1': ('last top-1 (%)', 100, 1),
    'train_top1': ('training top-1 (%)', 100, 1),
    'flips': ('flips of a weight', 1, 2),
    'flipped_last': ('weights flipping in the last epoch (%)', 100, 2),
    'ops': ('OPs (10⁶)', 1e-6, 3),
    'size_bytes': ('size (kB)', 1e-3, 1),
    'latency': ('packed (ms)', 1e3, 3),
    'step_ms': ('time of an update (ms)', 1, 0),
    'seconds': ('time (s)', 1, 0),
}
COUNTED = ('ops', 'size_bytes', 'latency')  # the same for all seeds; others have a mean and a spread
MEASURED = tuple(key for key in COLUMNS if key not in COUNTED)


# Percentiles in the plot of flips, column of flips.csv -> style of its line.
PERCENTILES = {'p100': ':', 'p99': '-.', 'p95': '-', 'p75': '--', 'p50': '-'}
LAYERS = {'first': 'first binary layer', 'last': 'last binary layer'}


def is_finished(folder):
    """Return whether the run in this folder is finished: the description of the network is the last file that it writes."""
    return any(folder.glob('*-summary.json'))


def network_prefix(folder):
    """Return the prefix of the network that a finished run exported."""
    (path,) = folder.glob('*-summary.json')
    return str(path)[: -len('-summary.json')]


def read_run(folder):
    """Return the results of a finished run as a dict; ``curve`` is the validation accuracy after each epoch.

    Includes flips if they were counted, and the accuracy of the exported network on test images if it was measured.
    """
    epochs = _read_csv(folder / 'metrics.csv')
    counts = _read_json(f'{network_prefix(folder)}-summary.json')['counts']
    batch_size = read_last(folder)['options']['batch_size']
    test = {'test_top1': _read_json(folder / TEST_FILE)['top1']} if (folder / TEST_FILE).exists() else {}
    curve = [float(epoch['top1']) for epoch in epochs]
    return {
        'best_top1': max(curve),
        'last_top1': curve[-1],
        'train_top1': float(epochs[-1]['train_top1']),
        'seconds': sum(float(epoch['seconds']) for epoch in epochs),
        'step_ms': 1e3 * batch_size / statistics.median(float(epoch['images_per_second']) for epoch in epochs),
        'ops': counts['ops'],
        'size_bytes': counts['size_bytes'],
        'curve': curve,
        **test,
        **_read_flips(folder / 'flips.csv'),
    }


def _read_flips(path):
    """Return the results of a run from its flips.csv, empty if there is none.

    They are the mean number of flips per weight in the whole run, the share of weights that flipped in the last epoch, and `flip_curves`:
    for each of `LAYERS` its name and, for each of `PERCENTILES`, the number of flips of a weight after each epoch.
    """
    if not path.exists():
        return {}
    layers = {}
    for row in _read_csv(path):
        layers.setdefault(row['layer'], []).append(row)
    together = layers.pop(ALL)
    names = list(layers)  # from the input to the output
    curves = {
        key: {'layer': name, **{column: [float(row[column]) for row in layers[name]] for column in PERCENTILES}}
        for key, name in zip(LAYERS, (names[0], names[-1]))
    }
    return {
        'flips': sum(float(row['mean']) for row in together),
        'flipped_last': float(together[-1]['flipped']),
        'flip_curves': curves,
    }


def _read_json(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def _read_csv(path):
    with open(path, newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def summarize(study, runs, latency=None):
    """Return the rows of the table, a list of dicts. `latency` is the content of `LATENCY_FILE`, if it exists.

    Each row has ``name``, ``baseline``, ``tuned`` (the value chosen for the tuned flag, or None), ``n`` (number of finished runs),
    ``seeds`` (a dict of seeds to results), ``failures`` and, if
    n > 0, the columns of `MEASURED`, each {'mean', 'spread', 'confidence'}, and of `COUNTED`. The spread is the sample standard deviation,
    the confidence half of the 95 % confidence interval of the mean (Student's t distribution); both are None if n = 1. The difference is
    the top-1 accuracy, on test images if there are any, minus the baseline's with the same seed.
    """
    rows = []
    for row in study.rows:
        own = [run for run in runs if run.row is row]
        seeds = {run.seed: read_run(run.folder) for run in own if not run.failure and is_finished(run.folder)}
        rows.append(
            {
                'name': row.name,
                'baseline': row.baseline,
                'tuned': next((run.tuned for run in own), None),
                'n': len(seeds),
                'seeds': seeds,
                'failures': {run.seed: run.failure for run in own if run.failure},
            }
        )
    by_name = {row['name']: row for row in rows}
    for row in rows:
        reference = by_name[row['baseline']]['seeds'] if row['baseline'] else {}
        for seed, result in row['seeds'].items():
            if seed in reference:
                key = 'test_top1' if 'test_top1' in result and 'test_top1' in reference[seed] else 'best_top1'
                result['difference'] = result[key] - reference[seed][key]
        for key in MEASURED:
            values = [result[key] for result in row['seeds'].values() if key in result]
            row[key] = _mean_and_spread(values) if values else None
        for key in COUNTED:
            row[key] = next((result[key] for result in row['seeds'].values() if key in result), None)
        row['latency'] = (latency or {'rows': {}})['rows'].get(row['name'], {}).get('seconds')
    return rows


def _mean_and_spread(values):
    """Return mean, sample standard deviation and half of the confidence interval of the mean."""
    n = len(values)
    spread = statistics.stdev(values) if n > 1 else None
    confidence = spread / n**0.5 * stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) if n > 1 else None
    return {'mean': statistics.fmean(values), 'spread': spread, 'confidence': confidence}


def write_results(study, runs, folder):
    """Write the results to a folder; return the text of ``summary.md``.

    The files are ``summary.md``, ``summary.csv``, ``summary.json``, the plots ``comparison.png``, the accuracy after each epoch, and
    ``tradeoff.png``, the accuracy against operations and, where it was measured, run time; and ``flips.png`` if flips were counted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    latency = _read_json(folder / LATENCY_FILE) if (folder / LATENCY_FILE).exists() else None
    rows = summarize(study, runs, latency)
    text = as_markdown(study, rows)
    if latency:
        text += f'\nPacked: median time of one image in one thread on {latency["processor"]}, all networks timed in turns.\n'
    with replacing(folder / 'summary.md') as temporary, open(temporary, 'w', encoding='utf-8') as file:
        file.write(text)
    write_json(folder / 'summary.json', {'study': study.name, 'title': study.title, 'rows': rows})
    with replacing(folder / 'summary.csv') as temporary, open(temporary, 'w', newline='', encoding='utf-8') as file:
        flat = [_flat(row) for row in rows]
        table = csv.DictWriter(file, list(flat[0]))
        table.writeheader()
        table.writerows(flat)
    if any(row['n'] for row in rows):
        with replacing(folder / 'comparison.png') as temporary:
            plot(study, rows, temporary)
        with replacing(folder / 'tradeoff.png') as temporary:
            plot_tradeoff(study, rows, temporary)
    if any('flip_curves' in result for row in rows for result in row['seeds'].values()):
        with replacing(folder / 'flips.png') as temporary:
            draw_flips(study, rows).savefig(temporary, dpi=110)
    return text


def as_markdown(study, rows):
    """Return the table as Markdown, followed by notes and the failed runs."""
    columns = [key for key in COLUMNS if any(row[key] is not None for row in rows)]
    headings = ['', 'n', *(COLUMNS[key][0] for key in columns)]
    tuned = any(row['tuned'] is not None for row in rows)
    if tuned:
        headings.insert(2, f'--{study.tuning.flag}')
    lines = [f'### {study.title}', '', f'| {" | ".join(headings)} |', '|-' * len(headings) + '|']
    for row in rows:
        cells = [row['name'], str(row['n']), *([str(row['tuned'])] if tuned else []), *(_cell(row, key) for key in columns)]
        lines.append(f'| {" | ".join(cells)} |')
    lines += ['', _LEGEND, '']
    for row in rows:
        lines += [f'- failed: {row["name"]}, seed {seed}: {failure}' for seed, failure in row['failures'].items()]
    return '\n'.join(lines) + '\n'


def _cell(row, key):
    _, factor, decimals = COLUMNS[key]
    if key in COUNTED:
        return '' if row[key] is None else f'{row[key] * factor:,.{decimals}f}'
    if row[key] is None:
        return 'baseline' if key == 'difference' and row['baseline'] is None else ''
    mean, spread = row[key]['mean'] * factor, row[key]['spread']
    text = f'{mean:+.{decimals}f}' if key == 'difference' else f'{mean:.{decimals}f}'
    if spread is None:
        return text
    if key == 'difference':
        confidence = row[key]['confidence'] * factor
        return f'{text} ± {spread * factor:.{decimals}f} ({mean - confidence:+.{decimals}f} to {mean + confidence:+.{decimals}f})'
    return f'{text} ± {spread * factor:.{decimals}f}'


def _flat(row):
    """Return a row of the CSV file, with unscaled numbers: accuracies from 0 to 1."""
    flat = {'row': row['name'], 'baseline': row['baseline'] or '', 'n': row['n'], 'failed': len(row['failures']), 'tuned': row['tuned']}
    for key in COLUMNS:
        if key in COUNTED:
            flat[key] = row[key]
        else:
            for part in ('mean', 'spread', 'confidence'):
                flat[f'{key}_{part}'] = (row[key] or {}).get(part)
    return flat


def plot(study, rows, path):
    """Plot the validation accuracy after each epoch: the mean over the seeds as a line, the range as a band."""
    figure = Figure(figsize=(7, 4.5), layout='constrained')
    axes = figure.subplots()
    for row in rows:
        curves = [[100 * top1 for top1 in result['curve']] for result in row['seeds'].values()]
        if curves:
            epochs = range(1, len(curves[0]) + 1)
            (line,) = axes.plot(epochs, [statistics.fmean(values) for values in zip(*curves)], label=row['name'])
            axes.fill_between(
                epochs,
                [min(values) for values in zip(*curves)],
                [max(values) for values in zip(*curves)],
                color=line.get_color(),
                alpha=0.2,
                linewidth=0,
            )
    axes.set(xlabel='epoch', ylabel='validation top-1 (%)', title=study.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(title='mean; band: all seeds', loc='lower right')
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def plot_tradeoff(study, rows, path):
    """Plot the accuracy of each row, mean and range over the seeds, against its operations and the time of its packed network."""
    finished = [row for row in rows if row['n']]
    quantities = {'ops': ('OPs (10⁶)', 1e-6), 'latency': ('packed network, one image (ms)', 1e3)}
    shown = [key for key in quantities if any(row[key] is not None for row in finished)]
    figure = Figure(figsize=(6.5 * len(shown), 5), layout='constrained')
    measured = 'test_top1' if all('test_top1' in result for row in finished for result in row['seeds'].values()) else 'best_top1'
    for axes, key in zip(figure.subplots(1, len(shown), squeeze=False, sharey=True)[0], shown):
        (label, factor), points = quantities[key], {}
        for row in finished:
            if row[key] is not None:
                values = [100 * result[measured] for result in row['seeds'].values()]
                mean = statistics.fmean(values)
                points[row['name']] = factor * row[key], mean
                axes.errorbar(*points[row['name']], yerr=[[mean - min(values)], [max(values) - mean]], marker='o', capsize=2)
        axes.set(xscale='log', xlabel=label, title=study.title)
        axes.xaxis.set_major_formatter('{x:g}')
        axes.xaxis.set_minor_formatter('{x:g}')
        axes.tick_params(which='minor', labelsize='x-small')
        axes.grid(alpha=0.3, which='both')
        _label(figure, axes, points)
    figure.axes[0].set_ylabel(f'{COLUMNS[measured][0]}; mean and range of the seeds')
    figure.savefig(path, dpi=110)


def _label(figure, axes, points):
    """Write the names of points beside them, higher where they would cover other names. `points` is a mapping of names to (x, y)."""
    figure.draw_without_rendering()  # the layout determines the places of the points
    size, taken = 8, []  # in points, 1/72 inch
    for name, point in sorted(points.items(), key=lambda item: item[1][1]):
        x, y = axes.transData.transform(point) * 72 / figure.dpi
        width = 0.6 * size * len(name)
        free = max([y, *(bottom + size for left, right, bottom in taken if left < x + width and x < right and y < bottom + size)])
        taken.append((x, x + width, free))
        axes.annotate(name, point, xytext=(4, free - y + 2), textcoords='offset points', fontsize=size)


def draw_flips(study, rows):
    """Draw the percentiles of the flips of a weight in each epoch, the mean over the seeds (MeliusNet, supplement C, figures a and b).

    Returns a figure with a row of axes for the first and for the last binary layer, and a column for each row of the study with flips. The
    line ``95 %`` is the number of flips that 95 % of the weights do not exceed.
    """
    shown = {row['name']: [result['flip_curves'] for result in row['seeds'].values() if 'flip_curves' in result] for row in rows}
    shown = {name: runs for name, runs in shown.items() if runs}
    figure = Figure(figsize=(1 + 3.2 * len(shown), 6), layout='constrained')
    figure.suptitle(f'{study.title}: flips of a weight in an epoch')
    grid = figure.subplots(len(LAYERS), len(shown), sharex=True, sharey='row', squeeze=False)
    for (layer, title), line in zip(LAYERS.items(), grid):
        for (name, runs), axes in zip(shown.items(), line):
            for column, style in PERCENTILES.items():
                values = [statistics.fmean(flips) for flips in zip(*(run[layer][column] for run in runs))]
                colour = '0.6' if column == 'p100' else f'C{list(PERCENTILES).index(column)}'
                label = 'maximum' if column == 'p100' else f'{column[1:]} %'
                axes.plot(range(1, len(values) + 1), values, style, color=colour, label=label)
            axes.set_yscale('symlog', linthresh=1)
            axes.set_ylim(0, None)
            axes.set_title(f'{name}: {title}\n({runs[0][layer]["layer"]})', fontsize='medium')
            axes.grid(alpha=0.3)
            axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in grid[-1]:
        axes.set_xlabel('epoch')
    grid[0, 0].legend(fontsize='small')
    return figure
