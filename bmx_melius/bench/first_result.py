"""Time to the first result of a packed network in a new process, and the memory that it occupies there.

The module runs as a program of its own, ``python first_result.py PREFIX INPUT.npy THREADS``, and prints one JSON object.
"""

import json
import os
import subprocess
import sys
import time

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # for PYTHONPATH: this package may not be installed


def first_result(prefix, input_file, threads):
    """Open a packed network in a new process without MXNet and run it once.

    Parameters
    ----------
    prefix : str
    input_file : str
        A ``.npy`` file of the float32 input.
    threads : int

    Returns
    -------
    dict
        ``import_ms``, of ``import bmx_melius`` after that of NumPy; ``first_result_ms``, of opening the files and the first run; and
        ``resident_bytes``, the memory that these two add to the process: weights, working memory and output, but not the input.
    """
    path = os.pathsep.join([_ROOT, *filter(None, [os.environ.get('PYTHONPATH')])])
    environment = {**os.environ, 'BMX_MELIUS_WITHOUT_MXNET': '1', 'PYTHONPATH': path}
    command = [sys.executable, '-W', 'ignore', __file__, prefix, input_file, str(threads)]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def _measure(prefix, input_file, threads):
    import numpy as np

    array = np.load(input_file)
    begin = time.perf_counter()
    import bmx_melius

    imported, resident = time.perf_counter(), _resident_bytes()
    session = bmx_melius.Session(prefix, threads=threads)
    session(array)
    return {
        'import_ms': (imported - begin) * 1e3,
        'first_result_ms': (time.perf_counter() - imported) * 1e3,
        'resident_bytes': _resident_bytes() - resident,
    }


def _resident_bytes():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


if __name__ == '__main__':
    sys.path.pop(0)  # the folder of this file, whose files must not shadow other modules
    prefix, input_file, threads = sys.argv[1:]
    json.dump(_measure(prefix, input_file, int(threads)), sys.stdout)
