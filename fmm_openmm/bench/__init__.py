"""Measurements behind the numbers in README and docs: accuracy, energy conservation and speed, each beside OpenMM's PME.

One module a benchmark of the command ``fmm-openmm bench``: ``solver``, ``md``, ``scaling``, ``nve``.
"""
