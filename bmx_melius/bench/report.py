"""Formatting of benchmark results (the same data as the JSON output) as text tables."""

import math

from ..reporting import table


def machine_lines(machine):
    """Return lines that describe the machine, and a table of the peak rates of one thread for each method of its instruction set."""
    rows = [
        (peak['kind'], peak['method'], *(f'{peak[key] / 1e9:.0f}' for key in ('in_registers', 'in_cache'))) for peak in machine['peaks']
    ]
    return (
        f'{machine["processor"]}, {machine["usable_cores"]} usable cores, instruction set {machine["instruction_set"]} '
        f'(of {", ".join(machine["instruction_sets"])})\n\n'
        + table(('', 'peaks of one thread, G MAC/s', 'registers', 'L1 cache'), rows, align='<<>>')
    )


def step_table(steps, machine, threads, by):
    """Return a table with one line per step or kind of step: time, share of the total, MAC/s, percent of the peak of `threads` threads."""
    total = sum(step['seconds'] for step in steps)
    rows = []
    for step in steps if by == 'step' else _by_kind(steps):
        rates = (None,) * 3
        if step['macs'] and step['seconds']:
            rate, peak = step['macs'] / step['seconds'], machine[f'peak_{step["kind"]}_macs_per_second']
            rates = f'{step["macs"] / 1e6:.1f}', f'{rate / 1e9:.0f}', f'{100 * rate / (peak * threads):.0f}' if peak else None
        rows.append((step['name'], f'{step["seconds"] * 1e6:.1f}', f'{100 * step["seconds"] / total:.1f}', *rates))
    rows.append(('sum', f'{total * 1e6:.1f}', '100.0', *(None,) * 3))
    return table((by, 'us', '%', 'M MAC', 'G MAC/s', '% of peak'), rows, align='<>>>>>')


def _by_kind(steps):
    """Sum the steps whose names differ only in the leading number. The slowest kind comes first."""
    kinds = {}
    for step in steps:
        name = step['name'].partition(' ')[2]
        kind = kinds.setdefault((name, step['kind']), {**step, 'name': name, 'seconds': 0, 'macs': 0})
        kind['seconds'] += step['seconds']
        kind['macs'] += step['macs']
    return sorted(kinds.values(), key=lambda kind: -kind['seconds'])


def latency_lines(latency, file_bytes, memory):
    """Return lines with the latency, throughput and working memory of a run, and the size of the network's files, in MB of 2^20 bytes."""
    per_image = latency['seconds'] / latency['images']
    batch = f' a batch of {latency["images"]}' if latency['images'] > 1 else ''
    return (
        f'{latency["seconds"] * 1e3:.3f} ms{batch} with {latency["threads"]} thread{"s" if latency["threads"] > 1 else ""} '
        f'(median; half of the runs within {latency["spread"] * 1e3:.3f} ms), {1 / per_image:.1f} images/s\n'
        f'files {file_bytes / 2**20:.2f} MB; working memory {memory / 2**20:.2f} MB beside weights and input'
    )


def comparison_table(results, reference):
    """Return a table with one line per row, or why it was not timed.

    A line has the median, interquartile range and minimum of the times, and median and minimum divided by the same of row `reference`, per
    image; and the size of the network's files in MB of 2^20 bytes.
    """

    def ratio(key, which):
        base = results[reference].get(which, math.nan) / results[reference]['images']
        return None if key.startswith('layer ') else f'{results[key][which] / results[key]["images"] / base:.2f}'

    rows = []
    for key, row in results.items():
        times, why = (None,) * 6, ''
        if 'seconds' in row:
            size = row['facts'].get('file_bytes')
            times = (
                *(f'{row[which] * 1e3:.3f}' for which in ('seconds', 'spread', 'least')),
                *(ratio(key, which) for which in ('seconds', 'least')),
                None if size is None else f'{size / 2**20:.2f}',
            )
        else:
            why = f'absent: pip install {" ".join(row["absent"])}' if 'absent' in row else f'failed: {row["error"]}'
        rows.append((row['title'], *times, why))
    return table(('', 'ms', '+-', 'least', 'ratio', 'of least', 'MB', ''), rows, align='<>>>>>><')


def figure_table(figures):
    """Return a table with one line per figure."""
    rows = [(name, None if value is None else f'{value:.3g}') for name, value in figures.items() if not isinstance(value, dict)]
    return table(('figure', 'value'), rows, align='<<')
