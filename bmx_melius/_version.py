"""The version of the project; everything else (setup.py, the command line) reads it here."""

__version__ = '0.9.0'
