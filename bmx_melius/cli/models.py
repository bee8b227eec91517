"""``bmx-melius models``: the networks of the zoo, with published accuracy, operations, size, time, paper and weights."""

import dataclasses

from ..errors import UserError, did_you_mean
from ..reporting import table
from .options import add_json_flag, print_json

_EXAMPLES = """\
examples:
  bmx-melius models                         # all networks
  bmx-melius models '*melius*'              # those whose names match
  bmx-melius models resnet18 --json         # those whose names contain it
  bmx-melius models --pretrained            # those with weights

Accuracies on ImageNet, top-1, or on the data that the table names, are published by others: this project has not trained on them. One in
brackets is for other options, which --json gives. Of networks whose weights ship with this project, it is the accuracy of these on the test
images that the table names. OPs and size are for the default options and images of the size in the table: OPs = BOPs / 64 + FLOPs, a binary
weight counts 1 bit, any other parameter 32 bits, 1 MB is 2^20 bytes. ms is the least time of the packed network for one image, with one
thread, on the processor below the table. `bmx-melius summary NAME` shows the layers, `bmx-melius bench NAME` the time on this machine,
`bmx-melius tables` all figures of the MeliusNet paper.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'models',
        help='list the networks of the zoo with accuracy, operations, size, time and weights',
        epilog=_EXAMPLES,
        description='List the networks of the zoo: published accuracy, operations, size, time, paper, and weights with their licence.',
    )
    parser.add_argument(
        'pattern', metavar='PATTERN', nargs='?', default='*', help='pattern of names, *melius*, or a part of them (default: all networks)'
    )
    parser.add_argument('--pretrained', action='store_true', help='list only networks with pretrained weights')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print a table or a JSON list. Raises `UserError` if no network matches."""
    from model_zoo import get_model_list, list_models
    from model_zoo.listing import describe

    names = list_models(arguments.pattern, arguments.pretrained)
    if not names:
        raise UserError(
            f'no network matches {arguments.pattern!r}{" and has pretrained weights" if arguments.pretrained else ""}'
            f'{did_you_mean(arguments.pattern.strip("*").lower(), get_model_list())}'
        )
    listed = [describe(name) for name in names]
    if arguments.json:
        print_json([_fields(network) for network in listed], output)
        return
    headings = ('network', 'top-1 %', 'OPs (1e8)', 'MB', 'ms', 'input', 'accuracy from', 'network from', 'weights')
    print(table(headings, [_row(network) for network in listed], '<>>>>><<<'), file=output)
    for processor in {network.timed_on for network in listed if network.timed_on}:
        print(f'\nms: packed, one image, one thread, {processor}; bmx-melius bench NAME measures this machine', file=output)
    if any(network.weights for network in listed):
        print('\nweights: get_model(NAME, pretrained=SOURCE), or --use-pretrained SOURCE; downloaded when they are first used', file=output)
    if any(network.stored for network in listed):
        print(
            '\nships with its weights: get_model(NAME, pretrained=True), model_zoo.packed(NAME), bmx-melius predict NAME IMAGE', file=output
        )


def _fields(network):
    """Return a JSON object."""
    weights = [
        {'pretrained': one.kind, 'top1': one.top1, 'top5': one.top5, 'licence': one.licence, 'source': one.source, 'url': one.url}
        for one in network.weights
    ]
    stored = network.stored
    if stored:
        accuracy = {'top1': stored.top1, 'interval': stored.interval, 'images': stored.images, 'data': stored.data}
        weights.append({'pretrained': True, **accuracy, 'licence': stored.licence, 'files': stored.files})
    accuracies = [dataclasses.asdict(accuracy) for accuracy in network.accuracies]
    return {
        'name': network.name,
        'source': network.source,
        'input_shape': [1, *network.input_shape],
        **{key: network.counts and network.counts[key] for key in ('bops', 'flops', 'ops', 'size_bytes')},
        'packed_ms': network.milliseconds,
        'timed_on': network.timed_on,
        'accuracies': accuracies,
        'repository': network.repository and dataclasses.asdict(network.repository),
        'weights': weights,
    }


def _row(network):
    counts, best, stored = network.counts, network.accuracies[0] if network.accuracies else None, network.stored
    return (
        network.name,
        f'{stored.top1:.2f}' if stored else best and (f'({best.top1})' if best.options else best.top1),
        counts and f'{counts["ops"] / 1e8:.2f}',
        counts and f'{counts["size_bytes"] / 2**20:.2f}',
        network.milliseconds and f'{network.milliseconds:.2f}',
        ' x '.join(map(str, network.input_shape[1:])) if counts else None,
        f'this project, {stored.data}' if stored else best and best.source,
        network.source,
        weights_of(network),
    )


def weights_of(network):
    """Return where trained weights of a network are, with their licence, or None."""
    if network.stored:
        return f'ships with it, {network.stored.licence}'
    if network.weights:
        return ', '.join(f'{one.kind}: {one.top1} %, {one.licence}' for one in network.weights)
    repository = network.repository
    return f"authors': {repository.licence or 'no licence'}" if repository and network.name in repository.weights else None
