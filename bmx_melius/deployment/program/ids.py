"""Inputs that are ids, numbers of rows of embeddings, such as the tokens of a text."""

from typing import Dict, Optional

from .program import Program

_MOVES = ('transposed', 'arranged')  # shape rules of operations that only move real numbers, beside views


def rows_by_input(program: Program) -> Dict[int, int]:
    """Return the number of rows that each input of ids selects from: ids are 0 to this number - 1.

    Of inputs that embeddings read, directly or moved, and nothing else does; the smallest number of rows if there are several embeddings.

    Parameters
    ----------
    program : Program
        May be a structure, without arrays.

    Returns
    -------
    dict of int to int
        Number of an input -> number of rows.
    """
    first = len(program.inputs)
    found: Dict[int, Optional[int]] = dict.fromkeys(program.outputs)  # number of a value -> rows, None if it is more than ids
    for number, operation in reversed(list(enumerate(program.operations, first))):
        rows: Optional[int] = None
        if operation.row.looks_up:
            rows = operation.attributes['rows']
        elif operation.row.view or operation.row.shape in _MOVES:
            rows = found.get(number)
        for source in operation.inputs:
            known = found.get(source, rows)
            found[source] = None if rows is None or known is None else min(known, rows)
    return {number: rows for number, rows in found.items() if number < first and rows is not None}
