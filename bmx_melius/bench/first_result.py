"""Program that opens a packed network, runs it once, and prints its times and memory as one JSON object.

``python first_result.py PREFIX INPUT.npy THREADS``. It runs as a file in a new process, whose first import of this package it times.
"""

import json
import os
import sys
import time


def main(prefix, input_file, threads):
    """Print the object; its keys are described in `latency.measure_first_result`."""
    import numpy as np

    array = np.load(input_file)
    begin = time.perf_counter()
    from bmx_melius import Session

    imported, resident = time.perf_counter(), resident_bytes()
    session = Session(prefix, threads=int(threads))
    session(array)
    times = {'import_ms': (imported - begin) * 1e3, 'first_result_ms': (time.perf_counter() - imported) * 1e3}
    print(json.dumps({**times, 'resident_bytes': resident_bytes() - resident}))


def resident_bytes():
    """Return the memory of this process that is not swapped out."""
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


if __name__ == '__main__':
    sys.path.pop(0)  # the folder of this file, whose files must not shadow other modules
    main(*sys.argv[1:])
