"""Execution of programs by the compiled engine, or by the NumPy reference where it is not compiled: `Session` and the MXNet operator.

Only the operator requires MXNet.
"""
