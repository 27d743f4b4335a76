"""Compiled CPU kernels: the matrix products and whole decoder layers of a step.

numba compiles them on the machine they run on; a team of threads computes them together. Only
`program.py` and what it needs import numba, and only when a model is to use it.
"""
