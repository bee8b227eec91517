"""The packed format: programs, their operations and serialization, and the NumPy reference implementation of every operation.

`packed_operator` describes the representation of a program in an MXNet symbol.
"""
