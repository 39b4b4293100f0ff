"""Measurements behind the numbers in README and docs: accuracy, energy conservation and speed.

One module a benchmark of the command ``fmm-openmm bench``, each imported where it is run: some need
a GPU. Its ``operators`` and ``layouts`` are in :mod:`fmm_openmm.literature`.
"""
