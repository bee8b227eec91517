"""Formatting of benchmark results (the same data as the JSON output) as text tables."""

import math


def machine_lines(machine):
    """Return lines that describe the machine, and a table of the peak rates of one thread for each method of its instruction set."""
    title = 'peaks of one thread, G MAC/s'
    width = max(len(title) - 8, *(len(peak['method']) for peak in machine['peaks']))
    return '\n'.join(
        [
            f'{machine["processor"]}, {machine["usable_cores"]} usable cores, instruction set {machine["instruction_set"]} '
            f'(of {", ".join(machine["instruction_sets"])})',
            '',
            f'{title:<{width + 8}} {"registers":>10} {"L1 cache":>10}',
            *(
                f'{"binary" if peak["binary"] else "float":<7} {peak["method"]:<{width}} '
                f'{peak["in_registers"] / 1e9:10.0f} {peak["in_cache"] / 1e9:10.0f}'
                for peak in machine['peaks']
            ),
        ]
    )


def step_table(steps, machine, threads, by):
    """Return a table with one line per step or kind of step: time, share of the total, MAC/s, percent of the peak of `threads` threads."""
    total = sum(step['seconds'] for step in steps)
    steps = steps if by == 'step' else _by_kind(steps)
    width = max(len(step['name']) for step in steps)
    lines = [f'{by:<{width}} {"us":>9} {"%":>6} {"M MAC":>9} {"G MAC/s":>9} {"% of peak":>10}']
    for step in steps:
        kind = 'binary' if step['binary'] else 'float'
        peak = machine[f'peak_{kind}_macs_per_second'] * threads
        line = f'{step["name"]:<{width}} {step["seconds"] * 1e6:9.1f} {100 * step["seconds"] / total:6.1f}'
        if step['macs'] and step['seconds']:
            rate = step['macs'] / step['seconds']
            line += f' {step["macs"] / 1e6:9.1f} {rate / 1e9:9.0f} {100 * rate / peak:10.0f}'
        lines.append(line)
    lines.append(f'{"sum":<{width}} {total * 1e6:9.1f}')
    return '\n'.join(lines)


def _by_kind(steps):
    """Sum the steps whose names differ only in the leading number. The slowest kind comes first."""
    kinds = {}
    for step in steps:
        name = step['name'].partition(' ')[2]
        kind = kinds.setdefault((name, step['binary']), {**step, 'name': name, 'seconds': 0, 'macs': 0})
        kind['seconds'] += step['seconds']
        kind['macs'] += step['macs']
    return sorted(kinds.values(), key=lambda kind: -kind['seconds'])


def latency_lines(latency, memory):
    """Return lines with the latency, throughput and working memory of a run."""
    per_image = latency['seconds'] / latency['images']
    batch = f' a batch of {latency["images"]}' if latency['images'] > 1 else ''
    return (
        f'{latency["seconds"] * 1e3:.3f} ms{batch} with {latency["threads"]} thread{"s" if latency["threads"] > 1 else ""} '
        f'(median; half of the runs within {latency["spread"] * 1e3:.3f} ms), {1 / per_image:.1f} images/s\n'
        f'working memory {memory / 2**20:.2f} MiB beside weights and input'
    )


def comparison_table(results, reference):
    """Return a table with one line per row: its time and the ratio to the time per image of row `reference`, or why it was not timed."""
    base = results.get(reference, {}).get('seconds', math.nan) / results[reference]['images']
    width = max(len(row['title']) for row in results.values())
    lines = [f'{"":<{width}} {"ms":>9} {"+-":>7} {"ratio":>7}']
    for key, row in results.items():
        if 'absent' in row:
            text = f'  absent: pip install {" ".join(row["absent"])}'
        elif 'error' in row:
            text = f'  failed: {row["error"]}'
        else:
            text = f' {row["seconds"] * 1e3:9.3f} {row["spread"] * 1e3:7.3f}'
            if not key.startswith('layer '):
                text += f' {row["seconds"] / row["images"] / base:7.2f}'
        lines.append(f'{row["title"]:<{width}}{text}')
    return '\n'.join(lines)


def figure_table(figures):
    """Return a table with one line per figure."""
    width = max(map(len, figures))
    return '\n'.join(
        f'{name:<{width}} {"-" if value is None else f"{value:.3g}"}' for name, value in figures.items() if not isinstance(value, dict)
    )
