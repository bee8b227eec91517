"""Tables of a benchmark, from what its JSON holds."""

import math


def machine_lines(machine):
    """Two lines about the machine."""
    return (
        f'{machine["processor"]}, {machine["usable_cores"]} usable cores, instruction set {machine["instruction_set"]} '
        f'(of {", ".join(machine["instruction_sets"])})\n'
        f'peaks of one thread: xor, popcount and add {machine["peak_binary_macs_per_second"] / 1e9:.0f} G binary MAC/s, '
        f'fused multiply-add {machine["peak_float_macs_per_second"] / 1e9:.0f} G MAC/s'
    )


def step_table(steps, machine, threads, by):
    """One line a step, or a kind of step: time, share of the whole, MAC/s, percent of the peak of as many threads."""
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
    """Steps with the same name, but for the number before it, added up; those that take longest first."""
    kinds = {}
    for step in steps:
        name = step['name'].partition(' ')[2]
        kind = kinds.setdefault((name, step['binary']), {**step, 'name': name, 'seconds': 0, 'macs': 0})
        kind['seconds'] += step['seconds']
        kind['macs'] += step['macs']
    return sorted(kinds.values(), key=lambda kind: -kind['seconds'])


def latency_lines(latency, memory):
    """What a run takes in all."""
    per_image = latency['seconds'] / latency['images']
    batch = f' a batch of {latency["images"]}' if latency['images'] > 1 else ''
    return (
        f'{latency["seconds"] * 1e3:.3f} ms{batch} with {latency["threads"]} thread{"s" if latency["threads"] > 1 else ""} '
        f'(median; half of the runs within {latency["spread"] * 1e3:.3f} ms), {1 / per_image:.1f} images/s\n'
        f'working memory {memory / 2**20:.2f} MiB beside weights and input'
    )


def comparison_table(results, reference):
    """One line a row, its time an image beside that of the row `reference`; absent and failed rows say why."""
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
    """One line a figure."""
    width = max(map(len, figures))
    return '\n'.join(
        f'{name:<{width}} {"-" if value is None else f"{value:.3g}"}' for name, value in figures.items() if not isinstance(value, dict)
    )
