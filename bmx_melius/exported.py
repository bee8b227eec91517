"""An exported network on the disk: ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and, where there is one, ``PREFIX-summary.json``.

The last one is this project's own, the description of the network, which checkpoints have, too: a JSON object with the fields

===============  ====================================================================================
``model``        the arguments of `model_zoo.get_model`
``input``        `InputSpec.to_json`: what an image goes through
``class_names``  a list of str, or null
``counts``       `Summary.counts`
``metrics``      the row of training's history whose weights these are; missing where none trained them
===============  ====================================================================================
"""

import json
import os
import shutil

from .container import write_parameters
from .errors import FileError, UserError
from .files import read_bytes, replacing, require_writable, scratch_folder

_SYMBOL = '-symbol.json'


def description_fields(model, spec, counts, class_names=None):
    """Return the fields of a description; `spec` is an `InputSpec`. To those of a trained network ``metrics`` are added."""
    return {'model': model, 'input': spec.to_json(), 'class_names': class_names, 'counts': counts}


class Description:
    """What is written down about a network beside its weights.

    Parameters
    ----------
    fields : dict
        Those at the top of this file, any of which may be missing.
    source : str
        The file that holds them.
    """

    def __init__(self, fields, source):
        self._fields, self.source = fields, source

    def model(self):
        """The arguments of `get_model`, a dict; an empty one where they are not known."""
        model = self._fields.get('model') or {}
        if not isinstance(model, dict):
            raise UserError(f'{self.source}: model must hold the arguments of a network, not {model!r}')
        return model

    def input_spec(self):
        """The `InputSpec`, or None."""
        from .preprocessing import InputSpec

        fields = self._fields.get('input')
        try:
            return None if fields is None else InputSpec.from_json(fields)
        except UserError as error:
            raise UserError(f'{self.source}: {error}') from error

    def class_names(self):
        """The names of the classes, a list, or None."""
        names = self._fields.get('class_names')
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f'{self.source}: class_names must be a list of names or null, not {names!r}')
        return names


class Exported:
    """The files that share a prefix.

    Parameters
    ----------
    prefix : str or os.PathLike
        The name of the symbol file will do, too.

    Raises
    ------
    UserError
        When it cannot name files that MXNet reads.
    """

    def __init__(self, prefix):
        prefix = os.fsdecode(prefix)
        try:
            prefix.encode()
        except UnicodeEncodeError as error:
            raise UserError(f'the prefix {prefix!r} is no text in UTF-8, and MXNet reads files of no other names: rename them') from error
        if '\0' in prefix:
            raise UserError(f'the prefix {prefix!r} holds a character of code 0, which no name of a file may')
        self.prefix = prefix[: -len(_SYMBOL)] if prefix.endswith(_SYMBOL) else prefix

    @property
    def symbol_file(self):
        """Path of the symbol."""
        return self.prefix + _SYMBOL

    def parameter_file(self, epoch):
        """Path of the parameters that were exported with the number `epoch`."""
        return f'{self.prefix}-{epoch:04d}.params'

    @property
    def description_file(self):
        """Path of the description."""
        return self.prefix + '-summary.json'

    def require_writable(self):
        """Raise `UserError` where one of the files could not be written."""
        folder, name = os.path.split(self.prefix)
        if not name:
            raise UserError(f'{self.prefix!r} names no files: give a PREFIX such as {os.path.join(folder, "net")}')
        for file in (self.symbol_file, self.parameter_file(0), self.description_file):
            require_writable(file)

    def write(self, net, fields):
        """Write a network and the fields of its description, in this order; each file replaces an older one in one step.

        Parameters
        ----------
        net : gluon.HybridBlock
            Hybridized, and run at least once since.
        fields : dict
            As `description_fields` gives them.
        """
        with scratch_folder(os.path.dirname(self.prefix) or '.') as scratch:
            written = Exported(os.path.join(scratch, 'network'))
            net.export(written.prefix)
            for file, own in ((written.parameter_file(0), self.parameter_file(0)), (written.symbol_file, self.symbol_file)):
                with replacing(own) as temporary:
                    shutil.copyfile(file, temporary)
        with replacing(self.description_file) as temporary, open(temporary, 'w', encoding='utf-8') as file:
            json.dump(fields, file, indent=1)

    def write_symbol(self, symbol, arrays):
        """Write a symbol, JSON text, and its arrays, a dict; an older pair is replaced when both new files are complete."""
        with replacing(self.symbol_file) as symbol_path, replacing(self.parameter_file(0)) as params_path:
            with open(symbol_path, 'w', encoding='utf-8') as file:
                file.write(symbol)
            write_parameters(params_path, arrays)

    def copy_description(self, source):
        """Take over the description of another form of the network, whose input and classes are the same; if it has none, have none."""
        if os.path.exists(source.description_file):
            with replacing(self.description_file) as temporary:
                shutil.copyfile(source.description_file, temporary)
        elif os.path.exists(self.description_file):
            os.remove(self.description_file)  # of the network whose files have been replaced

    def description(self):
        """The `Description` of `description_file`, an empty one where it is missing. Raises `UserError` if it is malformed."""
        if not os.path.exists(self.description_file):
            return Description({}, self.description_file)
        try:
            fields = json.loads(read_bytes(self.description_file).decode())
        except FileError:
            raise
        except ValueError as error:  # no JSON, or no text at all
            raise UserError(f'{self.description_file} is damaged ({error}); export the network again, or remove the file') from error
        if not isinstance(fields, dict):
            raise UserError(f'{self.description_file} holds no JSON object; export the network again, or remove the file')
        return Description(fields, self.description_file)
