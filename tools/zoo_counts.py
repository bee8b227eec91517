"""Write `model_zoo/counts.json`, the counts of the networks with their default options. Run: ``python tools/zoo_counts.py``."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bmx_melius.analysis.summary import summary  # noqa: E402
from bmx_melius.files.io import replacing  # noqa: E402
from model_zoo import get_model, get_model_list  # noqa: E402
from model_zoo.listing import COUNTS_FILE  # noqa: E402
from model_zoo.published import has_counts  # noqa: E402
from model_zoo.registry import find  # noqa: E402

KEYS = 'bops', 'flops', 'ops', 'size_bytes'


def count(name):
    """Return the counts of a network of the zoo."""
    counts = summary(get_model(name), input_shape=(1, *find(name).input_shape)).counts
    return {key: counts[key] for key in KEYS}


def main():
    """Count all networks."""
    lines = [f'"{name}": {json.dumps(count(name))}' for name in get_model_list() if has_counts(name)]
    with replacing(COUNTS_FILE) as temporary, open(temporary, 'w', encoding='utf-8') as file:
        file.write('{\n' + ',\n'.join(lines) + '\n}\n')


if __name__ == '__main__':
    main()
