"""Options of the network from which fine-tuning starts, as its checkpoint or its description stores them."""

import re

from ...arguments import flag_of
from ...errors import UserError
from ...files.exported import Exported
from ..saving.stored_checkpoints import description_of

EXPORTED = re.compile(r'(.+)-\d{4}\.params')
_FLAGS = ('initial_layers', 'clip_threshold')  # options of a network with a flag; others are --model-options
# Not inherited: the classes belong to the data, and stages of training differ in the bits.
_OF_TRAINING = ('name', 'classes', 'bits', 'weight_bits', 'last_gamma')


def options_of_weights(file):
    """Return the arguments of `get_model` for the network of a file of weights, a dict; empty if they are unknown.

    They are known for the weights of a checkpoint, and for ``PREFIX-0000.params`` with a description, unless these files are damaged, which
    loading the weights reports.
    """
    exported = EXPORTED.fullmatch(file)
    try:
        found = description_of(file) or (exported and Exported(exported.group(1)).description())
        return found.model() if found else {}
    except UserError:
        return {}


def with_inherited(options):
    """Return the values of all flags; where the user gave none, the network of ``--resume-params`` determines them.

    Inherited are the name of the network, and of the network of this name the stem, the clipping threshold and the arguments in
    ``--model-options``.

    Parameters
    ----------
    options : dict
        Values of all flags, without defaults that depend on other flags.

    Raises
    ------
    UserError
        When the description of the weights names a function of the user that the command line does not name.
    """
    file = options['resume_params']
    model = options_of_weights(file)
    if not model:
        return options
    values = dict(options)
    if values['model'] is None:
        if ':' in model.get('name', ''):
            raise UserError(
                f'--resume-params: {file} is of a network that the Python function {model["name"]} builds: give --model {model["name"]} '
                'as well, if it may be executed'
            )
        values['model'] = model.get('name')
    if values['model'] != model.get('name'):
        return values
    for name in _FLAGS:
        if values[name] is None:
            values[name] = model.get(name)
    further = {name: value for name, value in model.items() if name not in (*_FLAGS, *_OF_TRAINING)}
    return {**values, 'model_options': {**further, **values['model_options']}}


def describe_differences(file, model):
    """Return a text about the arguments of `get_model` in which the network of a file of weights differs from `model`, '' if in none."""
    stored = options_of_weights(file)
    names = [name for name in ('name', *sorted({*stored, *model})) if name != 'classes' and (name != 'name' or 'name' in stored)]
    differing = [name for name in dict.fromkeys(names) if stored and stored.get(name) != model.get(name)]
    if not differing:
        return ''
    flags = {'name': '--model'}
    listed = (
        f'{flags.get(name, flag_of(name))} {stored.get(name, "(default)")} (here {model.get(name, "(default)")})' for name in differing
    )
    return f'these weights are of a network with {", ".join(listed)}'
