"""The engine of this project without MXNet: a packed network or a single binary layer, run by `bmx_melius.Session`."""

import statistics

PACKAGES = {}
_PROFILES = 50


def prepare(arguments, array, threads):
    """Prepare the peer.

    `arguments`: prefix (of the packed files), or channels (of a single layer). Fact: ``file_bytes`` of the files, or, for a layer,
    ``convolution_seconds``, the seconds of its binary steps only.
    """
    import bmx_melius
    from bmx_melius.files.exported import Exported

    if 'prefix' in arguments:
        session = bmx_melius.Session(arguments['prefix'], threads=threads)
        return lambda: session(array), {'file_bytes': Exported(arguments['prefix']).file_bytes()}

    from bmx_melius.bench.networks import single_layer
    from bmx_melius.deployment.runtime.engine import MAC_KINDS

    session = bmx_melius.Session(single_layer(arguments['channels'], array.shape[2]), threads=threads)
    seconds = [sum(seconds for _, seconds, _, kind in session.profile(array) if MAC_KINDS[kind] == 'binary') for _ in range(_PROFILES)]
    return lambda: session(array), {'convolution_seconds': statistics.median(seconds)}
