"""Files of an exported network: ``PREFIX-symbol.json``, ``PREFIX-0000.params`` and the optional ``PREFIX-summary.json``.

The first two are MXNet's. The last one is the description of the network, specific to this project: a JSON object. Checkpoints store
the same description; packed networks have it in PREFIX-symbol.json, as an attribute of the whole symbol, which MXNet ignores. Its fields
are

===============  ====================================================================================
``model``        the arguments of `model_zoo.get_model`
``input``        `InputSpec.to_json`: shape of the input and preprocessing of images
``class_names``  a list of str, or null
``counts``       `Summary.counts`
``split``        `data.split.Split.to_json`: on which images of a folder it was trained; missing for other data
``metrics``      losses and accuracies of the epoch whose weights these are; missing in imported networks
===============  ====================================================================================
"""

import contextlib
import errno
import json
import os
import re
import shlex
import shutil

from ..errors import FileError, UserError, is_printable, similar
from ..forking import lazy_attribute
from ..vision.preprocessing import InputSpec
from .io import read_text, replacing, require_writable, scratch_folder, write_json
from .other_formats import other_format
from .parameters import write_parameters

_SYMBOL = '-symbol.json'
_ENDINGS = ('.params', '.json', '.onnx')  # of files that are given in place of a prefix
_LISTED = 3  # prefixes that a message names
_RECOGNIZED = 1 << 16  # bytes of a file of another program that tell its format
_EMBEDDED = 'bmx_melius_description'  # attribute of a symbol: ['str', JSON text], in the form of MXNet's own attributes


def description_fields(model, spec, counts, class_names=None, split=None):
    """Return the fields of a description without ``metrics``, which training adds; `spec` is an `InputSpec`, `split` a `Split`."""
    fields = {'model': model, 'input': spec.to_json(), 'class_names': class_names, 'counts': counts}
    return {**fields, 'split': split.to_json()} if split else fields


class Description:
    """Description of a network: how it was built, its input, its classes.

    Parameters
    ----------
    fields : dict
        The fields in the module docstring; each may be missing.
    source : str
        The file they were read from, for error messages.

    Attributes
    ----------
    fields, source
        The parameters.
    """

    def __init__(self, fields, source):
        self.fields, self.source = fields, source

    @classmethod
    def parse(cls, text, source):
        """Build a `Description` from JSON text. Raises `UserError` if it is malformed, or a name in it has control characters."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f'{source}: the description of the network is damaged ({error}); export the network again') from error
        if not isinstance(fields, dict):
            raise UserError(f'{source}: the description of the network is not a JSON object; export the network again')
        unprintable = next((text for text in _texts(fields) if not is_printable(text)), None)
        if unprintable is not None:
            raise UserError(
                f'{source}: {ascii(unprintable)} has control characters, which a terminal could execute: correct the description'
            )
        return cls(fields, source)

    def model(self):
        """Return the arguments of `get_model`, a dict; empty if they are unknown."""
        model = self.fields.get('model') or {}
        if not isinstance(model, dict):
            raise UserError(f'{self.source}: model must hold the arguments of a network, not {model!r}')
        return model

    def input_spec(self):
        """Return the `InputSpec`, or None if it is unknown."""
        fields = self.fields.get('input')
        try:
            return None if fields is None else InputSpec.from_json(fields)
        except UserError as error:
            raise UserError(f'{self.source}: {error}') from error

    def class_names(self):
        """Return the names of the classes, a list of str, or None if they are unknown."""
        names = self.fields.get('class_names')
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f'{self.source}: class_names must be a list of names or null, not {names!r}')
        return names


class Exported(os.PathLike):
    """The files of an exported network, which share a prefix. Its path as an `os.PathLike` is the prefix.

    The symbol is read when it is first needed, and then kept: whatever reads these files should be given the same object.

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
    def of(cls, prefix):
        """Return `prefix` if it is an `Exported`, with what has been read already; else the `Exported` of a prefix."""
        return prefix if isinstance(prefix, cls) else cls(prefix)

    def __fspath__(self):
        return self.prefix

    @classmethod
    def in_run(cls, folder, network):
        """Return the files in the folder of a training run, named like the network; ``package.module:function`` without the module."""
        return cls(os.path.join(folder, network.rpartition(':')[2]))

    @property
    def symbol_file(self):
        """Path of the symbol."""
        return self.prefix + _SYMBOL

    @lazy_attribute
    def symbol_text(self):
        """Content of the symbol file. Raises `UserError` if it cannot be read."""
        self.require()
        return read_text(self.symbol_file)

    def require(self):
        """Raise `FileError` if there is no symbol. The message says what a PREFIX is, and which there are."""
        if not os.path.exists(self.symbol_file):
            raise FileError(errno.ENOENT, f'{os.strerror(errno.ENOENT)}; {_what_was_meant(self.prefix)}', self.symbol_file)

    @property
    def names_files(self):
        """Whether an argument that may also name a network of the zoo means files, even if these do not exist."""
        named = os.sep in self.prefix or self.prefix.endswith(_ENDINGS)
        return named or os.path.exists(self.symbol_file) or os.path.exists(self.prefix)

    def parameter_file(self, epoch):
        """Return the path of the parameters exported with the number `epoch`."""
        return f'{self.prefix}-{epoch:04d}.params'

    def file_bytes(self):
        """Return the size of the symbol and of the parameters."""
        return sum(map(os.path.getsize, (self.symbol_file, self.parameter_file(0))))

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
            self.copy(written)
        write_json(self.description_file, fields)

    def copy(self, source):
        """Copy the parameters and the symbol of `source`, an `Exported`. Each file replaces an older one; its description is removed."""
        for file, own in ((source.parameter_file(0), self.parameter_file(0)), (source.symbol_file, self.symbol_file)):
            with replacing(own) as temporary:
                shutil.copyfile(file, temporary)
        self._remove_description_file()

    def write_symbol(self, symbol, arrays, fields=None):
        """Write a symbol and its arrays. An older pair is replaced after both new files are complete, and its description is removed.

        Parameters
        ----------
        symbol : str
            JSON text.
        arrays : dict of str to numpy.ndarray
        fields : dict or None
            Description of the network, to be stored in the symbol.
        """
        if fields:
            content = json.loads(symbol)
            content['attrs'] = {**content.get('attrs', {}), _EMBEDDED: ['str', json.dumps(fields)]}
            symbol = json.dumps(content, indent=2)
        with replacing(self.symbol_file) as symbol_path, replacing(self.parameter_file(0)) as params_path:
            with open(symbol_path, 'w', encoding='utf-8') as file:
                file.write(symbol)
            write_parameters(params_path, arrays)
        self._remove_description_file()

    def _remove_description_file(self):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.description_file)

    @property
    def packing_command(self):
        """The command that packs the network, into files beside these."""
        return f'bmx-melius convert {shlex.quote(self.prefix)} {shlex.quote(self.prefix + "-packed")}'

    def copy_description(self, source):
        """Copy the description file of another form of the same network, an `Exported`, if there is one."""
        if os.path.exists(source.description_file):
            with replacing(self.description_file) as temporary:
                shutil.copyfile(source.description_file, temporary)

    def description(self):
        """Read the description in the symbol or, if it has none, `description_file`.

        Returns
        -------
        Description
            Empty if there is no description.

        Raises
        ------
        UserError
            If the description is malformed.
        """
        embedded = self._embedded_description()
        if embedded is not None:
            return Description.parse(embedded, self.symbol_file)
        if os.path.exists(self.description_file):
            return Description.parse(read_text(self.description_file), self.description_file)
        return Description({}, self.description_file)

    def _embedded_description(self):
        """Return the JSON text of the description in the symbol, or None."""
        if not os.path.exists(self.symbol_file):
            return None
        if _EMBEDDED not in self.symbol_text:
            return None
        try:
            kind, embedded = json.loads(self.symbol_text)['attrs'][_EMBEDDED]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f'{self.symbol_file}: the description of the network is damaged; convert the network again') from error
        return embedded if kind == 'str' and isinstance(embedded, str) else ''


def _what_was_meant(prefix):
    """Return what is wrong with a prefix of which there is no symbol, as the end of a message."""
    meaning = 'a PREFIX is what the names of both files of a network begin with, PREFIX-symbol.json and PREFIX-0000.params'
    begin = re.sub(r'(-[0-9]{4})?\.params$|\.json$|-symbol$', '', prefix)
    if prefix.endswith('.onnx'):
        return f'{prefix} is an ONNX model: `bmx-melius import-onnx {prefix} PREFIX` makes a packed network of it'
    if os.path.isdir(prefix):
        found = _prefixes_in(prefix)
        advice = f'give {" or ".join(found[:_LISTED])}' if found else 'there are no such files in it'
        return f'{prefix} is a folder, and {meaning}: {advice}'
    if os.path.isfile(prefix) and begin == prefix:
        with open(prefix, 'rb') as file:
            other = other_format(prefix, file.read(_RECOGNIZED))
        return (
            f'{prefix} is {other}; `bmx-melius import-onnx NET.onnx PREFIX` makes a packed network of an ONNX model' if other else meaning
        )
    if begin != prefix:
        there = os.path.exists(begin + _SYMBOL)
        return f'{meaning}: give {begin}' if there else f'{meaning}, here {begin}: there is no {begin}{_SYMBOL}'
    closest = similar_prefixes(prefix)
    return f'{meaning}' + (f'; there is {" and ".join(closest)}' if closest else '')


def similar_prefixes(prefix):
    """Return up to three prefixes of networks in the folder of a prefix: similar prefixes or, if there are none, the first."""
    folder = os.path.dirname(prefix) or '.'
    found = _prefixes_in(folder) if os.path.isdir(folder) else []
    return similar(prefix, found) or found[:_LISTED]


def _prefixes_in(folder):
    """Return the prefixes of the networks in a folder, sorted."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(_SYMBOL))
    return [os.path.normpath(os.path.join(folder, name[: -len(_SYMBOL)])) for name in names]


def _texts(value):
    """Yield all texts in a JSON value, also the names of its fields. Not recursive: its nesting may be as deep as the parser allows."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            values += [*value, *value.values()]
