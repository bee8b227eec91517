"""Studies: sets of training runs that differ in selected flags and in their seeds, defined by YAML files in this folder.

The keys of a file are, for a study on ImageNet:

``title``
    Title of the table and the plot.
``flags``
    Flags of ``bmx-melius train`` for all runs, as a mapping: ``{use-rec: true, lr: 0.1}`` is ``--use-rec --lr 0.1``. A mapping is converted
    to JSON, a list to comma-separated numbers.
``axes``
    The compared flags: for each axis, a mapping of its values to flags. The rows of the study are all combinations. Later flags replace
    earlier ones; mappings are merged.
``compare``
    Name of an axis. The baseline of a row has the first value of this axis and the same values of all other axes.
``latency``
    Optional. Whether the networks are also packed and timed.
``rows``
    Optional. Names of rows -> flags that are merged last, or ``false`` to leave out the row.
``seeds``
    Seeds; each row is trained once with each of them.
``row_seeds``
    Optional. Names of rows whose training takes long -> how many of the seeds they are trained with.
``tune``
    Optional. A flag whose value is chosen for each row by trial runs: the value with the best validation accuracy. Its keys are ``flag``,
    ``values`` (those tried; the same number for every row), ``seed`` (of the trial runs; none of the seeds of the study) and, optionally,
    ``flags`` that only the trial runs have, such as a smaller number of epochs.
``quick``
    Replacements for these keys, for small networks on a dataset that needs no download; axes that are not given are kept.
``fashion``
    The same for small networks on a part of Fashion-MNIST.
"""

import dataclasses
import itertools
import json
import pathlib
import re
from typing import Dict, Optional, Tuple

import yaml

from bmx_melius import UserError

HERE = pathlib.Path(__file__).resolve().parent
KEYS = {'title': str, 'flags': dict, 'axes': dict, 'compare': str, 'seeds': list}
OPTIONAL_KEYS = {'rows': dict, 'latency': bool, 'row_seeds': dict, 'tune': dict}
# Keys whose content replaces that for ImageNet -> the images of these studies.
SCALES = {'quick': 'handwritten digits or rendered glyphs', 'fashion': 'a part of Fashion-MNIST'}
TUNING_KEYS = {'flag': str, 'values': list, 'seed': int}


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """StudyRow of a study: the flags of its runs, and the name of its baseline (None for a baseline)."""

    name: str
    flags: Dict[str, object]
    baseline: Optional[str]

    @property
    def folder(self):
        """Name of the folder of the row."""
        return re.sub(r'[^\w.]+', '-', self.name)

    def arguments(self, seed):
        """Return the arguments of ``bmx-melius train`` except --save-dir."""
        return [*_arguments(self.flags), '--seed', str(seed)]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Flag whose value is chosen for each row: trial runs with the `seed` and the additional `flags` try each of the `values`."""

    flag: str
    values: Tuple[object, ...]
    seed: int
    flags: Dict[str, object] = dataclasses.field(default_factory=dict)

    def trial(self, row, value):
        """Return the row of the trial run of a value."""
        return dataclasses.replace(row, name=f'{row.name}, {self.flag} {value}', flags=_merged(row.flags, {**self.flags, self.flag: value}))


@dataclasses.dataclass(frozen=True)
class Study:
    """Study: rows to be compared, each trained once with each of its seeds; with `latency` their packed networks are timed.

    `row_seeds` has the number of seeds of rows that are trained with fewer, `tuning` the flag that is chosen for each row, if there is one.
    """

    name: str
    title: str
    rows: Tuple[StudyRow, ...]
    seeds: Tuple[int, ...]
    latency: bool = False
    row_seeds: Dict[str, int] = dataclasses.field(default_factory=dict)
    tuning: Optional[Tuning] = None

    def only(self, names):
        """Return the study with only the rows of these names and the baselines of these. Raises `UserError` for an unknown name."""
        known = {row.name: row for row in self.rows}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UserError(f'the study {self.name} has no row {", ".join(unknown)}; its rows: {"; ".join(known)}')
        kept = {*names, *(known[name].baseline for name in names)}
        return dataclasses.replace(self, rows=tuple(row for row in self.rows if row.name in kept))

    def runs(self, seeds=None):
        """Return pairs (row, seed): all rows with the first seed, then with the next. `seeds`, if given, replace the study's."""
        seeds = seeds or self.seeds
        return [(row, seed) for seed in seeds for row in self.rows if seed in seeds[: self.row_seeds.get(row.name)]]


def known_studies(scale=None):
    """Return the names of the studies in this folder, sorted; with one of `SCALES` only of those that have it."""
    paths = sorted(HERE.glob('*.yaml'))
    return [path.stem for path in paths if scale is None or scale in yaml.safe_load(path.read_text(encoding='utf-8'))]


def read_study(name, scale=None):
    """Read a study.

    Parameters
    ----------
    name : str
        One of `known_studies`, or the path of a YAML file.
    scale : str, optional
        One of `SCALES`: use the settings under this key.

    Raises
    ------
    UserError
        When the study does not exist or the file is invalid; the message names the file.
    """
    path = pathlib.Path(name) if name.endswith('.yaml') else HERE / f'{name}.yaml'
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except FileNotFoundError as error:
        raise UserError(f'there is no study {name}; known: {", ".join(known_studies())}, or give the path of a .yaml file') from error
    except yaml.YAMLError as error:
        raise UserError(f'{path} is not a valid YAML file: {" ".join(str(error).split())}') from error
    _check(path, content, {**KEYS, **OPTIONAL_KEYS, **dict.fromkeys(SCALES, dict)}, required=KEYS)
    if scale:
        if scale not in content:
            raise UserError(f'{path} has no key `{scale}`: run it without --{scale}, or add one')
        _check(path, content[scale], {**KEYS, **OPTIONAL_KEYS})
        content = {**content, **content[scale], 'axes': {**content['axes'], **content[scale].get('axes', {})}}
    axes, compared = content['axes'], content['compare']
    if compared not in axes:
        raise UserError(f'{path}: `compare` must be one of the axes {", ".join(axes)}, not {compared}')
    for axis, values in axes.items():
        if not isinstance(values, dict) or not values:
            raise UserError(f'{path}: the axis {axis} must be a mapping of its values to flags, not {values!r}')
    rows, exceptions = [], dict(content.get('rows', {}))
    for labels in itertools.product(*axes.values()):
        flags = content['flags']
        for axis, label in zip(axes, labels):
            if not isinstance(axes[axis][label], dict):
                raise UserError(f'{path}: {axis} {label} must be a mapping of flags')
            flags = _merged(flags, axes[axis][label])
        alike = [next(iter(axes[axis])) if axis == compared else label for axis, label in zip(axes, labels)]
        row, baseline = _name(axes, labels), _name(axes, alike)
        exception = exceptions.pop(row, {})
        if exception is not False:
            if not isinstance(exception, dict):
                raise UserError(f'{path}: rows: {row} must be a mapping of flags, or false')
            rows.append(StudyRow(row, _merged(flags, exception), baseline if baseline != row else None))
    _check_exceptions(path, rows, exceptions)
    row_seeds = content.get('row_seeds', {})
    for name, count in row_seeds.items():
        if name not in [row.name for row in rows] or not isinstance(count, int) or count < 1:
            raise UserError(f'{path}: row_seeds: {name}: {count} is not a row with a positive number of seeds')
    tuning = _read_tuning(path, content.get('tune'), content['seeds'])
    return Study(path.stem, content['title'], tuple(rows), tuple(content['seeds']), content.get('latency', False), row_seeds, tuning)


def _read_tuning(path, content, seeds):
    if not content:  # the key is absent, or `quick` turns tuning off by {}
        return None
    _check(f'{path}: tune', content, {**TUNING_KEYS, 'flags': dict}, required=TUNING_KEYS)
    if len(content['values']) < 2 or content['seed'] in seeds:
        raise UserError(f'{path}: tune needs two or more values, and a seed that the study does not use, not one of {seeds}')
    return Tuning(content['flag'], tuple(content['values']), content['seed'], content.get('flags', {}))


def _check(path, content, keys, required=()):
    if not isinstance(content, dict):
        raise UserError(f'{path} must be a mapping with {", ".join(keys)}')
    for key, value in content.items():
        if key not in keys:
            raise UserError(f'{path}: unknown key {key}; known: {", ".join(keys)}')
        if not isinstance(value, keys[key]):
            raise UserError(f'{path}: {key} must be a {keys[key].__name__}, not {value!r}')
    missing = [key for key in required if key not in content]
    if missing:
        raise UserError(f'{path} lacks {", ".join(missing)}')


def _check_exceptions(path, rows, exceptions):
    """Raise `UserError` for `exceptions` that name no row, and for rows whose baseline is left out."""
    names = [row.name for row in rows]
    if exceptions:
        raise UserError(f'{path}: rows: there is no row {", ".join(exceptions)}; known: {"; ".join(names)}')
    for row in rows:
        if row.baseline and row.baseline not in names:
            raise UserError(f'{path}: rows: {row.baseline} is left out, but {row.name} is compared with it')


def _name(axes, labels):
    """Return the name of a row, the labels of the axes that have more than one value: 'meliusnet22, grouped'."""
    return ', '.join(str(label) for axis, label in zip(axes, labels) if len(axes[axis]) > 1) or ', '.join(map(str, labels))


def _merged(flags, others):
    merged = {**flags, **others}
    for name, value in others.items():
        if isinstance(value, dict) and isinstance(flags.get(name), dict):
            merged[name] = {**flags[name], **value}
    return merged


def _arguments(flags):
    """Yield the command-line arguments for a mapping of flags."""
    for name, value in flags.items():
        if value is False:
            continue
        yield f'--{name}'
        if isinstance(value, dict):
            yield json.dumps(value)
        elif isinstance(value, list):
            yield ','.join(map(str, value))
        elif value is not True:
            yield str(value)
