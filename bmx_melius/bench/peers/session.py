"""The engine of this project without MXNet: a packed network or a single binary layer, run by `bmx_melius.Session`."""

import statistics

PACKAGES = {}
_PROFILES = 50


def prepare(arguments, array, threads):
    """Prepare the peer.

    `arguments`: prefix (of the packed files), or channels (of a single layer). Fact, for a layer: the seconds of its binary steps only.
    """
    import bmx_melius

    if 'prefix' in arguments:
        session = bmx_melius.Session(arguments['prefix'], threads=threads)
        return lambda: session(array), {}

    from bmx_melius.bench.networks import single_layer

    session = bmx_melius.Session(single_layer(arguments['channels'], array.shape[2]), threads=threads)
    seconds = [sum(seconds for _, seconds, _, binary in session.profile(array) if binary) for _ in range(_PROFILES)]
    return lambda: session(array), {'convolution_seconds': statistics.median(seconds)}
