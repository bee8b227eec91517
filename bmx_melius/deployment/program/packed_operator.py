"""Representation of a program in an MXNet symbol: the operator ``bmx_melius_packed``, its inputs and its attribute.

Its inputs are those of the program, followed by the words of the program, an int32 vector. MXNet infers shapes before it has the words,
so the attribute ``structure`` contains the structure of the program (see `bmx_melius.deployment.program.program`): its words as decimal
numbers, separated by single spaces.
"""

import functools
import re

import numpy as np

from .operations import ProgramError
from .program import Program
from .words import words_of

NAME = 'bmx_melius_packed'
STRUCTURE = 'structure'
_NUMBERS = re.compile(r'-?[0-9]{1,10}(?: -?[0-9]{1,10})*')


def is_packed(operator, attributes):
    """Return whether a node of a symbol is a packed operator: the compiled one, or its replacement in Python."""
    return NAME in (operator, attributes.get('op_type'))


def operator_attributes(program):
    """Return the attributes of the operator that runs a program: a dict of str to str."""
    return {STRUCTURE: text_of(program.to_structure())}


def text_of(structure):
    """Return the words of a structure as the value of the attribute."""
    return ' '.join(map(str, structure.tolist()))


def read_structure(attributes):
    """Read the structure of a program from the attributes of its operator, or return it from a cache of the latest ones.

    Parameters
    ----------
    attributes : dict of str to str

    Returns
    -------
    program : bmx_melius.deployment.program.program.Program
        Without arrays.
    length : int
        Number of words of the program.

    Raises
    ------
    ProgramError
        If the attribute is missing or not a valid structure.
    """
    try:
        return _read(attributes.get(STRUCTURE, ''))
    except ProgramError as error:
        raise ProgramError(f'{NAME}: the attribute {STRUCTURE} is damaged: {error}') from error


@functools.lru_cache(maxsize=32)
def _read(text):
    words = _words(text)
    return Program.from_structure(words), int(words[2])


def _words(text):
    if _NUMBERS.fullmatch(text):
        numbers = np.array(text.split(' '), dtype=np.int64)
        words = words_of(numbers)
        if (words == numbers).all():
            return words
    raise ProgramError('it is not a list of numbers of 32 bits')
