"""Files of an exported network: ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and the optional ``PREFIX-summary.json``.

The first two are those of MXNet. The last one is specific to this project; checkpoints store the same description. It is a JSON object
with the fields

===============  ====================================================================================
``model``        the arguments of `model_zoo.get_model`
``input``        `InputSpec.to_json`: shape of the input and preprocessing of images
``class_names``  a list of str, or null
``counts``       `Summary.counts`
``metrics``      losses and accuracies of the epoch whose weights these are; missing in imported networks
===============  ====================================================================================
"""

import json
import os
import shutil

from .container import write_parameters
from .errors import FileError, UserError
from .files import read_bytes, replacing, require_writable, scratch_folder, write_json

_SYMBOL = '-symbol.json'


def description_fields(model, spec, counts, class_names=None):
    """Return the fields of a description without ``metrics``, which training adds; `spec` is an `InputSpec`."""
    return {'model': model, 'input': spec.to_json(), 'class_names': class_names, 'counts': counts}


class Description:
    """Description of a network: how it was built, its input, its classes.

    Parameters
    ----------
    fields : dict
        The fields in the module docstring; each may be missing.
    source : str
        The file they were read from, for error messages.
    """

    def __init__(self, fields, source):
        self._fields, self.source = fields, source

    def model(self):
        """Return the arguments of `get_model`, a dict; empty if they are unknown."""
        model = self._fields.get('model') or {}
        if not isinstance(model, dict):
            raise UserError(f'{self.source}: model must hold the arguments of a network, not {model!r}')
        return model

    def input_spec(self):
        """Return the `InputSpec`, or None if it is unknown."""
        from .preprocessing import InputSpec

        fields = self._fields.get('input')
        try:
            return None if fields is None else InputSpec.from_json(fields)
        except UserError as error:
            raise UserError(f'{self.source}: {error}') from error

    def class_names(self):
        """Return the names of the classes, a list of str, or None if they are unknown."""
        names = self._fields.get('class_names')
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f'{self.source}: class_names must be a list of names or null, not {names!r}')
        return names


class Exported:
    """The files of an exported network, which share a prefix.

    Parameters
    ----------
    prefix : str or os.PathLike
        The prefix, or the path of the symbol file.

    Raises
    ------
    UserError
        If MXNet cannot open files of this name.
    """

    def __init__(self, prefix):
        prefix = os.fsdecode(prefix)
        try:
            prefix.encode()
        except UnicodeEncodeError as error:
            raise UserError(f'the prefix {prefix!r} is not valid UTF-8, which MXNet requires of file names: rename the files') from error
        if '\0' in prefix:
            raise UserError(f'the prefix {prefix!r} contains a null character, which file names cannot have')
        self.prefix = prefix[: -len(_SYMBOL)] if prefix.endswith(_SYMBOL) else prefix

    @classmethod
    def in_run(cls, folder, network):
        """Return the files in the folder of a training run, named like the network; ``package.module:function`` without the module."""
        return cls(os.path.join(folder, network.rpartition(':')[2]))

    @property
    def symbol_file(self):
        """Path of the symbol."""
        return self.prefix + _SYMBOL

    def parameter_file(self, epoch):
        """Return the path of the parameters exported with the number `epoch`."""
        return f'{self.prefix}-{epoch:04d}.params'

    @property
    def description_file(self):
        """Path of the description."""
        return self.prefix + '-summary.json'

    def require_writable(self):
        """Raise `UserError` if one of the files cannot be written."""
        folder, name = os.path.split(self.prefix)
        if not name:
            raise UserError(f'{self.prefix!r} names no files: give a PREFIX such as {os.path.join(folder, "net")}')
        for file in (self.symbol_file, self.parameter_file(0), self.description_file):
            require_writable(file)

    def write(self, net, fields):
        """Write a network, then its description. Each file replaces an older one atomically.

        Parameters
        ----------
        net : gluon.HybridBlock
            Hybridized, and run at least once after that.
        fields : dict
            As returned by `description_fields`.
        """
        with scratch_folder(os.path.dirname(self.prefix) or '.') as scratch:
            written = Exported(os.path.join(scratch, 'network'))
            net.export(written.prefix)
            for file, own in ((written.parameter_file(0), self.parameter_file(0)), (written.symbol_file, self.symbol_file)):
                with replacing(own) as temporary:
                    shutil.copyfile(file, temporary)
        write_json(self.description_file, fields)

    def write_symbol(self, symbol, arrays):
        """Write a symbol (JSON text) and its arrays (a dict). An older pair is replaced after both new files are complete."""
        with replacing(self.symbol_file) as symbol_path, replacing(self.parameter_file(0)) as params_path:
            with open(symbol_path, 'w', encoding='utf-8') as file:
                file.write(symbol)
            write_parameters(params_path, arrays)

    def copy_description(self, source):
        """Copy the description of another form of the same network, an `Exported`; without one remove that of replaced files."""
        if os.path.exists(source.description_file):
            with replacing(self.description_file) as temporary:
                shutil.copyfile(source.description_file, temporary)
        elif os.path.exists(self.description_file):
            os.remove(self.description_file)  # it describes the network whose files were replaced

    def description(self):
        """Read `description_file`. Return a `Description`, empty if the file is missing. Raises `UserError` if it is malformed."""
        if not os.path.exists(self.description_file):
            return Description({}, self.description_file)
        try:
            fields = json.loads(read_bytes(self.description_file).decode())
        except FileError:
            raise
        except ValueError as error:  # neither JSON nor UTF-8
            raise UserError(f'{self.description_file} is damaged ({error}); export the network again, or remove the file') from error
        if not isinstance(fields, dict):
            raise UserError(f'{self.description_file} holds no JSON object; export the network again, or remove the file')
        return Description(fields, self.description_file)
