"""What the literature does in other ways than the solver, to be compared with: M2L operators, data
layouts of P2P, a treecode.

Nothing else imports this package: the benchmarks of the command line do when they are asked to, and
:mod:`fmm_openmm.implementations` looks up by name what ``m2l`` and ``method`` ask for.
"""
