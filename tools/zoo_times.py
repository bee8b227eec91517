#!/usr/bin/env python
"""Write the times of networks of the model zoo, packed, on this processor to `model_zoo/times.json`, for `bmx-melius models`.

    python tools/zoo_times.py --pack FOLDER [NAME ...]            # packs what is not in FOLDER: 40 minutes for all networks
    python tools/zoo_times.py FOLDER --processor 'AMD EPYC (Zen 4)'

Networks have random weights, or those of this project, and images of the size in `bmx-melius models`. All that FOLDER has are timed in
turns, one image and one thread, each in a process of its own. Times of the same processor are replaced, those of others stay. Give an empty
folder to --pack after a change of the zoo, of the conversion or of the packed format, and stop other programs before the second command.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bmx_melius  # noqa: E402
from bmx_melius.arguments import positive_int  # noqa: E402
from bmx_melius.bench.comparison import compare  # noqa: E402
from bmx_melius.bench.networks import pack  # noqa: E402
from bmx_melius.bench.peers import session  # noqa: E402
from bmx_melius.bench.rows import Row  # noqa: E402
from bmx_melius.deployment.runtime.engine import instruction_sets, require_engine  # noqa: E402
from bmx_melius.files.exported import Exported  # noqa: E402
from bmx_melius.files.io import replacing, scratch_folder  # noqa: E402
from bmx_melius.process import processor  # noqa: E402
from bmx_melius.reporting import ProgressLine  # noqa: E402
from bmx_melius.training.recording.environment import checkout  # noqa: E402
from model_zoo import get_model, get_model_list  # noqa: E402
from model_zoo.listing import TIMES_FILE  # noqa: E402
from model_zoo.published import has_counts  # noqa: E402
from model_zoo.registry import find  # noqa: E402

ROUNDS = 20


def networks():
    """Return the registered networks that have a size."""
    return [find(name) for name in get_model_list() if has_counts(name) or find(name).stored]


def packed(network, folder):
    """Return the packed files of a network, an `Exported`: those that ship with the project, or the place of others in `folder`."""
    return Exported(network.stored.packed() if network.stored else str(folder / network.name))


def is_packed(network, folder):
    """Return whether `pack_into` has finished: it writes the symbol last."""
    return pathlib.Path(packed(network, folder).symbol_file).exists()


def pack_into(folder, name):
    """Pack a network with random weights."""
    with scratch_folder(folder) as scratch:
        network, block = find(name), get_model(name, norm_kwargs={'momentum': 0.0})
        packed(network, folder).copy(Exported(pack(block, f'{scratch}/network', (1, *network.input_shape))))


def measure(folder, repetitions):
    """Return the least and the median milliseconds of each network. Ends the program if one fails."""
    rows = [
        Row(
            key=network.name,
            title=network.name,
            group='packed',
            peer=session,
            input_shape=(1, *network.input_shape),
            threads=1,
            arguments={'prefix': packed(network, folder).prefix},
        )
        for network in networks()
        if is_packed(network, folder)
    ]
    results = compare(rows, repetitions, min(ROUNDS, repetitions), progress)
    failed = [f'{name}: {result["error"]}' for name, result in results.items() if 'error' in result]
    if failed:
        sys.exit('\n'.join(failed))
    return {
        name: {key: round(1e3 * result[measured], 4) for key, measured in (('least', 'least'), ('median', 'seconds'))}
        for name, result in results.items()
    }


def progress(items, description):
    """Return a progress line over `items`."""
    return ProgressLine(items, total=len(items), description=description, unit='networks')


def write(times):
    """Write the times of all processors, a network a line."""
    parts = []
    for name, table in times.items():
        lines = [f'  {json.dumps(network)}: {json.dumps(found)}' for network, found in table['milliseconds'].items()]
        facts = [f'  {json.dumps(key)}: {json.dumps(value)},\n' for key, value in table.items() if key != 'milliseconds']
        parts.append(f'{json.dumps(name)}: {{\n{"".join(facts)}  "milliseconds": {{\n' + ',\n'.join(lines) + '\n  }\n}')
    with replacing(TIMES_FILE) as temporary:
        pathlib.Path(temporary).write_text('{\n' + ',\n'.join(parts) + '\n}\n', encoding='utf-8')


def main():
    """Pack the networks, or time them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', metavar='FOLDER', type=pathlib.Path, help='of the packed networks')
    parser.add_argument('names', metavar='NAME', nargs='*', help='networks to pack (default: all)')
    parser.add_argument('--pack', action='store_true', help='pack the networks that are not in FOLDER, and do not time them')
    parser.add_argument('--processor', metavar='NAME', default=processor(), help='name of the processor (default: %(default)s)')
    parser.add_argument('--repetitions', metavar='N', type=positive_int, default=100, help='timed runs of each (default: %(default)s)')
    arguments = parser.parse_intermixed_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.pack:
        wanted = [find(name) for name in arguments.names] or networks()
        missing = [network.name for network in wanted if not is_packed(network, arguments.folder)]
        if len(missing) == 1:
            pack_into(arguments.folder, *missing)
        else:  # a process for each, because conversions leave memory behind
            for name in progress(missing, 'packing'):
                subprocess.run([sys.executable, __file__, '--pack', arguments.folder, name], check=True)
        return
    require_engine()
    git = checkout(__file__)
    times = json.loads(TIMES_FILE.read_text(encoding='utf-8'))
    times[arguments.processor] = {
        'instruction_set': instruction_sets()[0],
        'version': bmx_melius.__version__,
        'commit': git and git['revision'],
        'date': datetime.date.today().isoformat(),
        'milliseconds': measure(arguments.folder, arguments.repetitions),
    }
    write(times)


if __name__ == '__main__':
    main()
