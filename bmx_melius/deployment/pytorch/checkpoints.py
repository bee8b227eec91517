"""Weights of PyTorch in files, read without executing what a pickle says."""

import collections
import os
import pickle
import warnings
import zipfile

from ...errors import UserError, counted, name_some
from ...files.io import read_bytes
from ...files.other_formats import other_format
from .modules import without_wrappers
from .package import import_torch_package, reason

_NESTED = ('state_dict', 'model', 'model_state_dict', 'net', 'network')  # keys of checkpoints that have the weights
_PREFIXES = ('module.', '_orig_mod.')  # of names in nn.DataParallel, and of torch.compile
_SAFE = (2, 6)  # before, `weights_only=True` could execute code of files that are not zip archives (CVE-2025-32434)
_ADVICE = "load it where it was written, and save its weights: torch.save(net.state_dict(), 'weights.pth')"
_HEAD = 1 << 16  # bytes that tell a format


def load_weights(module, path):
    """Load the weights of a checkpoint into a module.

    Parameters
    ----------
    module : torch.nn.Module
    path : str or os.PathLike
        A state dict that `torch.save` wrote, or a checkpoint that has one as ``state_dict``, ``model``, ``model_state_dict``, ``net`` or
        ``network``. Names may begin with ``module.`` and ``_orig_mod.``, as in `nn.DataParallel` and `torch.compile`.

    Raises
    ------
    UserError
        If the file cannot be read, needs more than weights, or does not have exactly the parameters of the module.
    """
    path = os.fspath(path)
    module = without_wrappers(module)
    wanted = module.state_dict()
    state = _without_prefixes(_state_of(_read(path), path), wanted)
    missing = [name for name in wanted if name not in state and not name.endswith('num_batches_tracked')]
    unexpected = [name for name in state if name not in wanted]
    shapes = [name for name in wanted if name in state and state[name].shape != wanted[name].shape]
    wrong = []
    if missing:
        wrong.append(f'{counted(len(missing), "parameter")} missing ({name_some(missing)})')
    if unexpected:
        wrong.append(f'{counted(len(unexpected), "parameter")} unknown ({name_some(unexpected)})')
    if shapes:
        described = [f'{name} {tuple(state[name].shape)} instead of {tuple(wanted[name].shape)}' for name in shapes]
        wrong.append(f'{counted(len(shapes), "parameter")} of another shape ({name_some(described)})')
    if wrong:
        raise UserError(f'the weights in {path} are not of {type(module).__name__}: {", ".join(wrong)}')
    module.load_state_dict(state, strict=False)  # files before PyTorch 0.4 have no num_batches_tracked


def _read(path):
    """Return the content of a file of `torch.save`."""
    torch = import_torch_package()
    beginning = read_bytes(path, _HEAD)
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < _SAFE and not zipfile.is_zipfile(path):
        raise UserError(
            f'{path} is not an archive of weights as PyTorch writes since 1.6. PyTorch before 2.6, here {torch.__version__}, may execute '
            f'code in other files: {_ADVICE}'
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return torch.load(path, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as error:
        if _is_pickle(path, beginning):
            raise UserError(f'{path} has more than weights, which would be executed by loading it: {_ADVICE}') from error
        raise UserError(_not_weights(path, beginning, error)) from error
    except Exception as error:  # of zip files, pickles, storages and TorchScript
        raise UserError(_not_weights(path, beginning, error)) from error


def _is_pickle(path, beginning):
    return zipfile.is_zipfile(path) or beginning[:1] == b'\x80'


def _not_weights(path, beginning, error):
    other = other_format(path, beginning)
    what = f': it is {other}' if other and 'checkpoint of PyTorch' not in other and 'a pickle' not in other else f' ({reason(error)})'
    return f'{path} cannot be read as weights of PyTorch{what}'


def _state_of(content, path):
    """Return the state dict in the content of a file, a dict of str to tensor."""
    for found in (content, *(content.get(key) for key in _NESTED if isinstance(content, dict))):
        if _is_state(found):
            return found
    keys = f'has {name_some(list(content))}' if isinstance(content, dict) else f'is {type(content).__name__}'
    raise UserError(f'{path} has no state dict, neither as a whole nor as {", ".join(_NESTED)}: it {keys}; {_ADVICE}')


def _is_state(value):
    torch = import_torch_package()
    return isinstance(value, dict) and len(value) > 0 and all(isinstance(each, torch.Tensor) for each in value.values())


def _without_prefixes(state, wanted):
    """Return a state dict without what wrappers put before all names, unless that is in the names of the module, too."""
    state = collections.OrderedDict(state)
    while True:
        found = (prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in state))
        prefix = None if wanted.keys() & state.keys() else next(found, None)
        if prefix is None:
            return state
        state = collections.OrderedDict((name[len(prefix) :], value) for name, value in state.items())
