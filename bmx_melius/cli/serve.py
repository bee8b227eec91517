"""``bmx-melius serve``: an inference service for packed networks over HTTP."""

import argparse

from ..arguments import positive_int, thread_count
from ..deployment.runtime.engine import check_threads
from ..serving.limits import MAX_MEGAPIXELS
from .options import exported_network

_EXAMPLES = """\
examples:
  bmx-melius serve out/best-packed                          # then open http://127.0.0.1:8000/ in a browser
  bmx-melius serve digits cars=out/cars-packed              # two networks, called digits and cars
  bmx-melius serve out/best-packed --host 0.0.0.0 --port 80 --queue 256     # for other machines

requests to a service of the network best-packed:
  curl --data-binary @photo.jpg 'localhost:8000/v1/classify?top=3'          # the most probable classes of a JPEG or PNG file
  curl -F image=@photo.jpg 'localhost:8000/v1/classify?model=best-packed'   # a form; the network is chosen by ?model=
  curl localhost:8000/v2/models/best-packed                 # names and shapes of inputs and outputs
  curl -d '{"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [...]}]}' \\
      localhost:8000/v2/models/best-packed/infer            # arrays: the Open Inference Protocol (KServe V2)
  curl localhost:8000/readyz; curl localhost:8000/metrics   # readiness; metrics for Prometheus

Requests that arrive while the cores are busy run together as one batch. When a network has --queue requests in progress, others are
refused with status 429. SIGTERM or Ctrl-C finishes the accepted requests and refuses new requests with 503. The service has no passwords
and no encryption: put a reverse proxy in front of it where others can reach it. docs/serving.md explains everything.

The service needs the packages of bmx-melius[serve], not MXNet.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'serve',
        help='serve packed networks over HTTP',
        epilog=_EXAMPLES,
        description='Answer requests over HTTP with packed networks: images or arrays in, classes or arrays out, and a page for browsers.',
    )
    parser.add_argument(
        'networks',
        metavar='PREFIX',
        nargs='+',
        help='prefix of packed files; NAME=PREFIX gives the network another name than the files',
    )
    address = parser.add_argument_group('address')
    address.add_argument('--host', default='127.0.0.1', help='address to listen on; 0.0.0.0: all (default: %(default)s, this machine only)')
    address.add_argument('--port', type=_port, default=8000, metavar='N', help='port; 0: any free one (default: %(default)s)')
    address.add_argument(
        '--allow-host',
        metavar='NAME',
        action='append',
        default=[],
        help='name of the service in its URLs, may be repeated; requests for other names are refused (default: with --host of this machine '
        'its names, otherwise all)',
    )
    batches = parser.add_argument_group('batches and threads')
    batches.add_argument(
        '--max-batch', type=positive_int, default=8, metavar='N', help='images of a run, and of a request (default: %(default)s)'
    )
    batches.add_argument(
        '--max-delay-ms',
        type=_not_negative,
        default=0.0,
        metavar='MS',
        help='how long an image waits for others while a worker is idle (default: 0: not at all; while all are busy, batches form anyway)',
    )
    batches.add_argument(
        '--workers', type=positive_int, default=1, metavar='N', help='batches that are computed at the same time (default: %(default)s)'
    )
    batches.add_argument(
        '--threads', type=thread_count, default='0', metavar='N', help='threads of a run (default: 0: one for each core that may be used)'
    )
    limits = parser.add_argument_group('limits')
    limits.add_argument(
        '--queue',
        type=positive_int,
        default=64,
        metavar='N',
        help='requests in progress for each network; others are refused with status 429 (default: %(default)s)',
    )
    limits.add_argument(
        '--max-upload-mb', type=_positive, default=16.0, metavar='MB', help='size of the body of a request, in MiB (default: %(default)g)'
    )
    limits.add_argument(
        '--max-megapixels',
        type=_megapixels,
        default=50.0,
        metavar='M',
        help=f'size of an uploaded image, in 10^6 pixels, at most {MAX_MEGAPIXELS} (default: %(default)g)',
    )
    limits.add_argument(
        '--read-seconds',
        type=_positive,
        default=30.0,
        metavar='S',
        help='time in which the headers of a request, then its body must arrive, and in which an answer must be received '
        '(default: %(default)g)',
    )
    limits.add_argument(
        '--decode-seconds',
        type=_positive,
        default=10.0,
        metavar='S',
        help='time in which an image must be decoded, or arrays in JSON be parsed (default: %(default)g)',
    )
    limits.add_argument(
        '--max-connections', type=positive_int, default=1000, metavar='N', help='connections; others get 503 (default: %(default)s)'
    )
    limits.add_argument(
        '--stop-seconds', type=_not_negative, default=30.0, metavar='S', help='time to finish requests after SIGTERM (default: %(default)g)'
    )
    parser.set_defaults(run=run, prepare=None)  # MXNet, which takes seconds to import, is not needed


def run(arguments, output):
    """Serve until a signal ends the service. Raises `UserError` if a network cannot be loaded or the address cannot be used."""
    from ..serving import server
    from ..serving.endpoints import Service
    from ..serving.hosts import allowed_hosts
    from ..serving.limits import Limits
    from ..serving.network import load_networks

    check_threads(arguments.threads)
    limits = Limits(
        max_batch=arguments.max_batch,
        max_delay=arguments.max_delay_ms / 1000,
        queue=arguments.queue,
        upload_bytes=int(arguments.max_upload_mb * (1 << 20)),
        pixels=int(arguments.max_megapixels * 10**6),
        read_seconds=arguments.read_seconds,
        decode_seconds=arguments.decode_seconds,
        connections=arguments.max_connections,
    )
    networks = load_networks(arguments.networks, arguments.threads, exported_network)
    listener = server.listen(arguments.host, arguments.port)

    def announce():
        for network in networks.values():
            print(network, file=output)
        print(f'listening on {server.url_of(listener)}', file=output, flush=True)

    service = Service(networks, limits, arguments.workers, allowed_hosts(arguments.host, arguments.allow_host))
    server.WebServer(service, limits, arguments.stop_seconds, announce).run(listener)


def _port(text):
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'expected a port, 0 to 65535, not {text!r}')
    return int(text)


def _not_negative(text):
    return _number(text, low=0)


def _positive(text):
    return _number(text, low=1e-3)


def _megapixels(text):
    return _number(text, low=1e-3, high=MAX_MEGAPIXELS)


def _number(text, low, high=1e6):
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f'expected a number from {low:g} to {high:g}, not {text!r}')
    return number
