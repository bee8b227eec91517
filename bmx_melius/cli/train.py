"""``bmx-melius train``: the training program ``train_imagenet.py``."""

import contextlib

_DESCRIPTION = 'Train a network, and export it. `bmx-melius train --help` lists the flags.'


def add_parser(commands):
    """Add the parser of the command to `commands`. It leaves all arguments to the parser of the training program."""
    # '\0' begins no argument, so the flags of training, also --help, are arguments like others here.
    parser = commands.add_parser(
        'train', help='train a network, and export it', description=_DESCRIPTION, prefix_chars='\0', add_help=False
    )
    parser.add_argument('arguments', nargs='*')
    parser.set_defaults(run=run, prepare=prepare)


def prepare():
    """Import the training program, which sets the environment variables that MXNet reads before it imports MXNet."""
    import train_imagenet  # noqa: F401


def run(arguments, output):
    """Run the training program, with its messages on `output`; return its exit status."""
    import train_imagenet

    with contextlib.redirect_stdout(output):
        return train_imagenet.main(arguments.arguments, 'bmx-melius train')
