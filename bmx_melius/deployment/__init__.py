"""Deployment of exported networks: conversion, the packed format, and execution.

``convert`` turns a graph into a program, ``program`` defines the format and the semantics of its operations, ``runtime`` executes programs
in Python without MXNet (`Session`) or as an operator inside MXNet. This package does not depend on the layers or the model zoo.
"""
