"""Representation of a program in an MXNet symbol: the operator ``bmx_melius_packed``, its inputs and its attribute.

Its inputs are the inputs of the program, followed by the words of the program, an int32 vector. MXNet infers shapes before it has the
words, so the attribute ``structure`` contains the structure of the program (see `bmx_melius.deployment.program.program`): its words as
decimal numbers, separated by single spaces.
"""

import functools
import re
from typing import Dict, List, Mapping, Optional, Tuple

import numpy as np

from ...files.symbol_json import VARIABLE, SymbolJson
from .operations import ProgramError
from .program import Program
from .words import words_of

NAME = 'bmx_melius_packed'
STRUCTURE = 'structure'
_MXNET_VERSION = ['int', 10901]  # the version whose JSON format is written
_NUMBERS = re.compile(r'-?[0-9]{1,10}(?: -?[0-9]{1,10})*')


def is_packed(operator: Optional[str], attributes: Mapping[str, str]) -> bool:
    """Return whether a node of a symbol is a packed operator: the compiled one, or its replacement in Python."""
    return NAME in (operator, attributes.get('op_type'))


def new_symbol() -> SymbolJson:
    """Return a `SymbolJson` without nodes, to which packed operators are added."""
    return SymbolJson(attributes={'mxnet_version': _MXNET_VERSION})


def add_operator(
    symbol: SymbolJson, name: str, inputs: List[List[int]], program: Program, words: np.ndarray
) -> Tuple[int, Dict[str, np.ndarray]]:
    """Add the operator that runs a program, and the variable of its words, to a symbol.

    Parameters
    ----------
    symbol : SymbolJson
    name : str
    inputs : list of [int, int, int]
        References to the inputs of the program, in the form of MXNet's JSON.
    program : bmx_melius.deployment.program.program.Program
    words : numpy.ndarray
        Of the program.

    Returns
    -------
    number : int
        Of the node.
    arrays : dict of str to numpy.ndarray
        The parameter that the variable needs.
    """
    attributes = {'__dtype__': '4', '__shape__': f'({len(words)},)'}  # 4: int32
    variable = [symbol.add(VARIABLE, f'{name}_program', attributes=attributes), 0, 0]
    return symbol.add(NAME, name, [*inputs, variable], operator_attributes(program)), {f'arg:{name}_program': words}


def operator_attributes(program: Program) -> Dict[str, str]:
    """Return the attributes of the operator that runs a program: a dict of str to str."""
    return {STRUCTURE: text_of(program.to_structure())}


def text_of(structure: np.ndarray) -> str:
    """Return the words of a structure as the value of the attribute."""
    return ' '.join(map(str, structure.tolist()))


def read_structure(attributes: Mapping[str, str]) -> Tuple[Program, int]:
    """Read the structure of a program from the attributes of its operator, or return it from a cache of the latest structures.

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
def _read(text: str) -> Tuple[Program, int]:
    words = _words(text)
    return Program.from_structure(words), int(words[2])


def _words(text: str) -> np.ndarray:
    if _NUMBERS.fullmatch(text):
        numbers = np.array(text.split(' '), dtype=np.int64)
        words = words_of(numbers)
        if (words == numbers).all():
            return words
    raise ProgramError('it is not a list of numbers of 32 bits')
