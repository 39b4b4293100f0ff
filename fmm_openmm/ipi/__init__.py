"""A driver of i-PI: ``i-pi-py_driver -m custom -P $(python -m fmm_openmm.ipi) -o charges=FILE``.

``python -m fmm_openmm.ipi`` prints the path of the driver. i-PI imports the file at that path as a
module of the file's name, which therefore must not be ``ipi``.
"""
