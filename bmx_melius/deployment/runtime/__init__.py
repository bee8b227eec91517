"""Execution of programs: the compiled engine or, without it, the NumPy reference; `Session` and the operator for MXNet.

Needs only NumPy, except the operator.
"""
