"""Methods of the literature for comparison with the solver's own: M2L operators, data layouts of
P2P, a treecode.

The package is imported only on request: by the benchmarks of the command line, and by
:mod:`fmm_openmm.implementations`, which looks up the names given as ``m2l`` and ``method``.
"""
