"""An exported network on the disk: ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and, where there is one, ``PREFIX-summary.json``."""

import json
import os

from ..errors import UserError

_SYMBOL = '-symbol.json'


class Exported:
    """The files that share a prefix.

    Parameters
    ----------
    prefix : str
        The name of the symbol file will do, too.
    """

    def __init__(self, prefix):
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
        """Path of what training wrote down about the network: its input, the names of its classes, its counts."""
        return self.prefix + '-summary.json'

    def require_folder(self):
        """Raise `UserError` where the folder that the files would be written to is missing."""
        folder = os.path.dirname(self.prefix) or '.'
        if not os.path.isdir(folder):
            raise UserError(f'there is no folder {folder} to write {self.symbol_file} to')

    def description(self):
        """The content of `description_file`, a dict; an empty one where the file is missing. Raises `UserError` if it is malformed."""
        if not os.path.exists(self.description_file):
            return {}
        try:
            with open(self.description_file, encoding='utf-8') as file:
                fields = json.load(file)
        except ValueError as error:  # no JSON, or no text at all
            raise UserError(f'{self.description_file} is damaged ({error}); export the network again, or remove the file') from error
        if not isinstance(fields, dict):
            raise UserError(f'{self.description_file} holds no JSON object; export the network again, or remove the file')
        return fields

    def input_spec(self):
        """The `InputSpec` that training wrote down, or None."""
        from ..preprocessing import InputSpec

        fields = self.description().get('input')
        try:
            return None if fields is None else InputSpec.from_json(fields)
        except UserError as error:
            raise UserError(f'{self.description_file}: {error}') from error

    def class_names(self):
        """The names of the classes that training wrote down, a list, or None."""
        names = self.description().get('class_names')
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f'{self.description_file}: class_names must be a list of names or null, not {names!r}')
        return names

    def input_shape(self, given):
        """The shape of the input, batch first, or a dict of one for each input's name.

        Parameters
        ----------
        given : list of `arguments.named_shape` or None
            Of the command line; None: what training wrote down.

        Raises
        ------
        UserError
            When nothing is known, or of several inputs not each is named.
        """
        if not given:
            spec = self.input_spec()
            if spec is None:
                raise UserError(f'there is no {self.description_file}: give the shape of the input with --input-shape N,C,H,W')
            return 1, *spec.shape
        names = [name for name, _ in given]
        if names == [None]:
            return given[0][1]
        if None in names or len(set(names)) != len(names):
            raise UserError('with several inputs, give each --input-shape once with its name: --input-shape NAME=N,C,H,W')
        return dict(given)
