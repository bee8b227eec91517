"""From an exported network to bit instructions: conversion, the packed format, and running it.

``convert`` turns a graph into a program, ``program`` defines the format and what its operations mean, ``runtime`` executes programs: in
Python without MXNet (`Session`), or as an operator inside MXNet. Nothing here knows the layers or networks that made the graph.
"""
