"""The packed format: programs, their operations and serialization, and the NumPy reference that defines every operation.

`packed_operator` describes a program as an operator in a symbol of MXNet.
"""
