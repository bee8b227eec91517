"""Results of a study: a table as Markdown, CSV and JSON, and a plot of the accuracies."""

import csv
import json
import statistics

from matplotlib.figure import Figure
from scipy import stats

from bmx_melius.files import replacing
from bmx_melius.training.recording.flips import ALL
from bmx_melius.training.saving.checkpoints import Checkpoints

TEST_FILE = 'test.json'  # in the folder of a run: result of `bmx-melius evaluate` on the test images
LATENCY_FILE = 'latency.json'  # in the folder of a study
CONFIDENCE = 0.95
_LEGEND = (
    'Mean ± sample standard deviation over n seeds. Difference: of the top-1 accuracy, on test images if there are any, from the baseline '
    'with the same seed, with the 95 % confidence interval of its mean.'
)

# Columns with a mean and a spread over the seeds: key -> (heading, factor, decimals)
MEASURED = {
    'test_top1': ('test top-1 (%)', 100, 1),
    'best_top1': ('best validation top-1 (%)', 100, 1),
    'last_top1': ('last top-1 (%)', 100, 1),
    'train_top1': ('training top-1 (%)', 100, 1),
    'seconds': ('time (s)', 1, 0),
    'step_ms': ('time of an update (ms)', 1, 0),
    'difference': ('difference (points)', 100, 1),
    'flips': ('flips of a weight', 1, 2),
    'flipped_last': ('weights flipping in the last epoch (%)', 100, 2),
}
# Columns that are the same for all seeds.
COUNTED = {'ops': ('OPs (10⁶)', 1e-6, 3), 'size_bytes': ('size (kB)', 1e-3, 1), 'latency': ('packed (ms)', 1e3, 3)}
ORDER = (
    'test_top1',
    'best_top1',
    'difference',
    'last_top1',
    'train_top1',
    'flips',
    'flipped_last',
    'ops',
    'size_bytes',
    'latency',
    'step_ms',
    'seconds',
)


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
    batch_size = Checkpoints.read(folder)['options']['batch_size']
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
    """Return the mean number of flips per weight in the whole run, and the share of weights that flipped in the last epoch."""
    if not path.exists():
        return {}
    epochs = [row for row in _read_csv(path) if row['layer'] == ALL]
    return {'flips': sum(float(row['mean']) for row in epochs), 'flipped_last': float(epochs[-1]['flipped'])}


def _read_json(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def _read_csv(path):
    with open(path, newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def summarize(study, runs, latency=None):
    """Return the rows of the table, a list of dicts. `latency` is the content of `LATENCY_FILE`, if it exists.

    Each row has ``name``, ``baseline``, ``n`` (number of finished runs), ``seeds`` (a dict of seeds to results), ``failures`` and, if
    n > 0, the columns of `MEASURED`, each {'mean', 'spread', 'confidence'}, and of `COUNTED`. The spread is the sample standard deviation,
    the confidence half of the 95 % confidence interval of the mean (Student's t distribution); both are None if n = 1. The difference is
    the top-1 accuracy, on test images if there are any, minus that of the baseline with the same seed.
    """
    rows = []
    for row in study.rows:
        own = [run for run in runs if run.row is row]
        seeds = {run.seed: read_run(run.folder) for run in own if not run.failure and is_finished(run.folder)}
        rows.append(
            {
                'name': row.name,
                'baseline': row.baseline,
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
    """Write ``summary.md``, ``summary.csv``, ``summary.json`` and the plots to a folder; return the text of ``summary.md``.

    The plots are ``comparison.png``, the accuracy after each epoch, and ``tradeoff.png``, the accuracy against operations and, where it was
    measured, against run time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    latency = _read_json(folder / LATENCY_FILE) if (folder / LATENCY_FILE).exists() else None
    rows = summarize(study, runs, latency)
    text = as_markdown(study, rows)
    if latency:
        text += f'\nPacked: median time of one image in one thread on {latency["processor"]}, all networks timed in turns.\n'
    with replacing(folder / 'summary.md') as temporary, open(temporary, 'w', encoding='utf-8') as file:
        file.write(text)
    with replacing(folder / 'summary.json') as temporary, open(temporary, 'w', encoding='utf-8') as file:
        json.dump({'study': study.name, 'title': study.title, 'rows': rows}, file, indent=1)
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
    return text


def as_markdown(study, rows):
    """Return the table as Markdown, followed by notes and the failed runs."""
    columns = [key for key in ORDER if any(row[key] is not None for row in rows)]
    headings = ['', 'n', *((MEASURED.get(key) or COUNTED[key])[0] for key in columns)]
    lines = [f'### {study.title}', '', f'| {" | ".join(headings)} |', '|-' * len(headings) + '|']
    lines += ['| ' + ' | '.join([row['name'], str(row['n']), *(_cell(row, key) for key in columns)]) + ' |' for row in rows]
    lines += ['', _LEGEND, '']
    for row in rows:
        lines += [f'- failed: {row["name"]}, seed {seed}: {failure}' for seed, failure in row['failures'].items()]
    return '\n'.join(lines) + '\n'


def _cell(row, key):
    if key in COUNTED:
        _, factor, decimals = COUNTED[key]
        return '' if row[key] is None else f'{row[key] * factor:,.{decimals}f}'
    _, factor, decimals = MEASURED[key]
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
    flat = {'row': row['name'], 'baseline': row['baseline'] or '', 'n': row['n'], 'failed': len(row['failures'])}
    for key in ORDER:
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
    quantities = {'ops': 'OPs', 'latency': 'packed network, one image / s'}
    shown = [key for key in quantities if any(row[key] is not None for row in finished)]
    figure = Figure(figsize=(6.5 * len(shown), 5), layout='constrained')
    measured = 'test_top1' if all('test_top1' in result for row in finished for result in row['seeds'].values()) else 'best_top1'
    for axes, key in zip(figure.subplots(1, len(shown), squeeze=False, sharey=True)[0], shown):
        for row in finished:
            if row[key] is not None:
                values = [100 * result[measured] for result in row['seeds'].values()]
                mean = statistics.fmean(values)
                axes.errorbar(row[key], mean, yerr=[[mean - min(values)], [max(values) - mean]], marker='o', capsize=2)
                axes.annotate(row['name'], (row[key], mean), xytext=(4, 3), textcoords='offset points', fontsize=8)
        axes.set(xscale='log', xlabel=quantities[key], title=study.title)
        axes.grid(alpha=0.3, which='both')
    figure.axes[0].set_ylabel(f'{MEASURED[measured][0]}; mean and range of the seeds')
    figure.savefig(path, dpi=110)
