"""Measurements behind the numbers in README and docs: accuracy, energy conservation and speed, each beside OpenMM's PME.

Each module is a command: ``python -m fmm_openmm.bench.nve --help``.
"""
