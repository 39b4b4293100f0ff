"""Solid harmonics, the lattice operator and the error estimate; the conventions are at the top
of ``harmonics.py``."""
