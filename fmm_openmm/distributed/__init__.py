"""The solver on many ranks of MPI, through a communicator of mpi4py."""

from fmm_openmm.distributed.solver import DistributedSolver

__all__ = ["DistributedSolver"]
