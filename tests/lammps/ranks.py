"""What the ranks of ``test_ranks.py`` run: ``python -m tests.lammps.ranks CASE FILE [KERNELS]``.

Rank 0 writes a file ``.npz``: of each evaluation of the case, in order, energy, pressures, and a
row for each atom in the order of their IDs, with ID, force and energy; and the number of solvers
made. KERNELS is a folder for the kernels of emulated GPUs.
"""

import sys

import numpy as np
from mpi4py import MPI

from fmm_openmm import lammps as interface
from fmm_openmm.errors import UnsupportedError
from tests.distributed.evaluate import choose_device
from tests.lammps.water import water

from lammps import lammps  # isort: skip

COMM = MPI.COMM_WORLD


def evaluate(lmp):
    lmp.command("run 0")
    n = lmp.extract_setting("nlocal")
    arrays = (
        lmp.numpy.extract_atom("id"),
        lmp.numpy.extract_atom("f"),
        lmp.numpy.extract_compute("peratom", 1, 1),
    )
    mine = np.column_stack([values[:n] for values in arrays]) if n else np.empty((0, 5))
    rows = np.concatenate(COMM.allgather(mine))
    pressures = lmp.numpy.extract_compute("pressures", 0, 1).copy()
    return lmp.get_thermo("pe"), pressures, rows[np.argsort(rows[:, 0])]


def prepare(lmp):
    lmp.command("compute peratom all pe/atom pair kspace fix")
    lmp.command("compute pressures all pressure NULL virial")
    lmp.command("thermo_style custom step pe c_pressures[1]")


def changes(boundary, ensemble, tilt="1 -1 1.5", cylinders=None):
    """After a few steps, with all atoms elsewhere, then with other charges, then with those in a
    part of the cell only, in a sheared cell with scaled pairs. A wire within cylinders has a net
    charge, and turns before atoms are deleted."""
    lmp = water(
        lammps,
        edge=3,
        pair="zero 4.0 nocoeff",
        tilt=tilt,
        coul="0 0.3 0.5",
        boundary=boundary,
    )
    interface.attach(lmp, tolerance=1e-6, neutralization=cylinders)
    prepare(lmp)
    lmp.commands_string(f"velocity all create 300 1\ntimestep 0.2\nfix move all {ensemble}")
    lmp.command("run 5")
    yield evaluate(lmp)
    lmp.command("displace_atoms all move 4.1 -3.7 0")
    yield evaluate(lmp)
    lmp.commands_string("set type 1 charge -0.6\nset type 2 charge 0.3")
    if cylinders:
        lmp.command("set type 1 charge -0.8")
        yield evaluate(lmp)
        lmp.command("change_box all xz final -0.5")
    yield evaluate(lmp)
    lmp.commands_string("group most id > 6\ndelete_atoms group most compress no bond yes")
    yield evaluate(lmp)


def ewald():
    """By an Ewald sum of LAMMPS, by the solver, and without the Coulomb interaction."""
    pairs, options = "lj/cut/coul/long 4.5", {"edge": 3, "tilt": "1 -1 1.5"}
    exact = water(lammps, pair=pairs, **options)
    exact.commands_string("pair_modify table 0\nkspace_style ewald 1e-8")
    found, without = (water(lammps, pair="lj/cut 4.5", **options) for _ in range(2))
    found.commands_string("pair_style hybrid lj/cut 4.5\npair_coeff * * lj/cut 0 0")
    found.command("pair_coeff 1 1 lj/cut 0.1553 3.166")
    interface.attach(found, tolerance=1e-5)
    for lmp in (exact, found, without):
        prepare(lmp)
        yield evaluate(lmp)


def gpus():
    """On the CPUs of the ranks, and on emulated GPUs."""
    choose_device(COMM, "emulated", sys.argv[3:])
    for backend in ("auto", "cuda"):
        lmp = water(lammps, edge=3, pair="zero 4.0 nocoeff", tilt="1 -1 1.5", coul="0 0.3 0.5")
        interface.attach(lmp, tolerance=0.05, order=3, precision="double", backend=backend)
        prepare(lmp)
        yield evaluate(lmp)


def faults():
    """What every rank refuses, and an error in a step, which every rank raises."""
    lmp = water(lammps, edge=3, pair="lj/cut 4.0")
    for options in ({"backend": "reference"}, {"levels": 1}):
        try:
            interface.attach(lmp, **options)
        except UnsupportedError as error:
            print(error, flush=True)
    interface.attach(lmp, tolerance=1e-4)
    lmp.commands_string("group two id 1 10\nset group two x 0.5 y 0.5 z 0.5\nfix nve all nve")
    try:
        lmp.command("run 50")
    except Exception as error:
        print(error, lmp.get_thermo("step") < 50, flush=True)
    return iter(())


CASES = {
    "periodic": lambda: changes("p p p", "npt temp 300 300 100 iso 1 1 100"),
    "slab": lambda: changes("p p f", "nve"),
    "wire": lambda: changes("s s p", "nve", "0 -1 1.5", [[4.0, 5.0, 0.0, 30.0]]),
    "ewald": ewald,
    "gpus": gpus,
    "faults": faults,
}


def main() -> None:
    made, solver = [], interface.DistributedSolver

    def make(*arguments, **options):
        made.append(solver(*arguments, **options))
        return made[-1]

    interface.DistributedSolver = make
    found = list(CASES[sys.argv[1]]())
    if COMM.rank == 0:
        energies, pressures, rows = zip(*found, strict=True) if found else ((), (), ())
        lengths = np.cumsum([len(block) for block in rows])
        np.savez(
            sys.argv[2],
            energies=energies,
            pressures=pressures,
            rows=np.concatenate(rows) if rows else [],
            lengths=lengths,
            solvers=len(made),
        )


if __name__ == "__main__":
    main()
