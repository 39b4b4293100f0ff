"""Measurements behind the numbers in README and docs: accuracy, energy conservation and speed.

Each benchmark of the command ``fmm-openmm bench`` has a module, which is imported only when it
runs, since some need a GPU. The benchmarks ``operators`` and ``layouts`` are in
:mod:`fmm_openmm.literature`.
"""
