"""``attach``: Coulomb energies, forces and virials in LAMMPS, by its fix external.

LAMMPS calls the package once a step, with the positions of its atoms. Charges, box, the factors of
special bonds and units are read from LAMMPS. Particles are kept in the order of their IDs, whatever
order LAMMPS has them in. On several ranks each has the atoms of its part of the box, which change
their ranks during a run, and copies of atoms near it, LAMMPS' ghost atoms.
"""

import re
import tempfile
from ctypes import POINTER, c_double, c_int
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.backends import BACKENDS
from fmm_openmm.checks import check_choice
from fmm_openmm.distributed import DistributedSolver
from fmm_openmm.distributed.communication import agree, shared_fate
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.oriented import (
    BOUNDARIES,
    OrientedNeutralization,
    OrientedSolver,
    neutralization_in_nm,
    oriented_box,
    rotated,
)
from fmm_openmm.planning.request import Request, RequestKeywords
from fmm_openmm.results import CoulombResult
from fmm_openmm.units import BOHR, COULOMB_CONSTANT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

UNITS = {"real": 0.1, "metal": 0.1, "electron": BOHR, "nano": 1.0}
"""Unit of length in nm, of LAMMPS' unit styles in which charges are in e."""

ELECTROSTATICS = (
    "coul",
    "tip4p",
    "dipole",
    "thole",
    "reaxff",
    "comb",
    "smtbq",
    "amoeba",
    "hippo",
    "eff",
)
"""Parts of the names of pair styles that have electrostatics of their own."""

FORCE_MODIFIERS = (
    "setforce",
    "aveforce",
    "lineforce",
    "planeforce",
    "freeze",
    "shake",
    "rattle",
    "filter/corotate",
    "store/force",
)
"""Beginnings of the names of fixes that act on the sum of all forces, as constraints do."""

ALONE = SimpleNamespace(
    size=1, rank=0, allgather=lambda value: [value], allreduce=lambda value: value
)
"""Communicator of a single rank, which needs no MPI."""

VOIGT = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
"""LAMMPS' order of the components of a virial."""


@lists_options(Request)
@suggests_keywords(like=Request, without=("tolerance", "precision"))
def attach(
    lmp: Any,
    tolerance: float = 1e-5,
    precision: str = "auto",
    backend: str = "auto",
    fix_id: str = "fmm",
    neutralization: "ArrayLike | None" = None,
    **options: "Unpack[RequestKeywords]",
) -> None:
    r"""Add the Coulomb interaction of all charges to a LAMMPS simulation.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_n{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ special} (1 - f_{ij}) \frac{q_i q_j}{r_{ij}}

    with the Coulomb constant of LAMMPS, dielectric constant included, the factors f of
    ``special_bonds coul``, and images n along the periodic directions of the box. The interaction
    is a ``fix external``, whose energy, virial and energies per atom are counted as those of a pair
    style with a ``kspace_style``; ``unfix`` removes it. Call this function after the atoms have
    been created and the pair styles chosen, and before fixes that act on the sum of all forces,
    such as ``shake`` and ``setforce``. On several MPI ranks every rank calls it, and the
    :class:`fmm_openmm.distributed.DistributedSolver` computes the interaction, on their CPUs or,
    with ``backend="cuda"``, on CuPy's current device of each.

    Args:
        lmp: a ``lammps.lammps``.
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
            LAMMPS' accuracy is relative to the force between two charges at 1 A.
        precision, backend: as in :class:`fmm_openmm.CoulombSolver`.
        fix_id: ID of the fix.
        neutralization: what carries the opposite of the net charge of a box that is periodic along
            one or two vectors, as in :class:`fmm_openmm.ase.FMMCalculator`, in LAMMPS' unit of
            length.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; there are no atoms, charges or IDs, or the
            Coulomb interaction has been attached already by another name.
        UnsupportedError: a ``kspace_style``, a pair style with electrostatics, ``run_style respa``,
            ``atom_style template``, a fix that must come after this interaction, units in which
            charges are not in e, or two dimensions; several MPI ranks without mpi4py, in
            partitions, with the reference backend, or with levels.

    An error during a run ends it: LAMMPS raises it with the text of the error.
    """
    if not hasattr(lmp, "set_fix_external_callback"):
        raise TypeError(f"`lmp` must be a lammps.lammps, got {type(lmp).__name__}")
    Request(tolerance, precision=precision, **options)  # refuses invalid values
    check_choice(backend, BACKENDS, "backend")
    settings = {"tolerance": tolerance, "precision": precision, "backend": backend, **options}
    comm = _communicator(lmp, settings)
    _check_supported(lmp, comm)
    _check_fixes(lmp, comm, fix_id)
    lengths = UNITS[lmp.extract_global("units")]
    settings["neutralization"] = neutralization_in_nm(neutralization, lengths)
    coupling = _Coupling(lmp, comm, fix_id, settings)
    coupling.check_particles()
    lmp.command(f"fix {fix_id} all external pf/callback 1 1")
    lmp.command(f"fix_modify {fix_id} energy yes virial yes")
    lmp.set_fix_external_callback(fix_id, coupling.evaluate, coupling)


def _check_supported(lmp, comm) -> None:
    """Refuse what has electrostatics already, or cannot have ours."""
    units = lmp.extract_global("units")
    if units not in UNITS:
        raise UnsupportedError(
            f"units {units!r}: use one of {', '.join(UNITS)}, in which charges are in e"
        )
    _check_run_style(lmp)
    if lmp.extract_setting("dimension") != 3:
        raise UnsupportedError("dimension 2: the Coulomb interaction needs three dimensions")
    kspace = lmp.extract_global("kspace_style")
    if kspace != "none":
        raise UnsupportedError(
            f"kspace_style {kspace} computes the Coulomb interaction already: use kspace_style none"
        )
    for style in _pair_styles(lmp, comm):
        if any(word in style for word in ELECTROSTATICS):
            raise UnsupportedError(
                f"pair_style {style} has electrostatics of its own: use the style without, such as "
                "lj/cut in place of lj/cut/coul/long"
            )


def _check_run_style(lmp) -> None:
    """Refuse r-RESPA, which calls no fix external."""
    if lmp.extract_global("respa_levels") is not None:
        raise UnsupportedError(
            "run_style respa leaves out the forces of a fix external: use run_style verlet"
        )


def _pair_styles(lmp, comm) -> list[str]:
    """Names of the pair styles, those of a hybrid style one by one."""
    style = lmp.extract_global("pair_style")
    if not style.startswith("hybrid"):
        return [style]
    lines = _information(lmp, comm, "system")
    names = [line.partition(":")[2] for line in lines if line.startswith("Hybrid sub-styles")]
    return " ".join(names).split()


def _check_fixes(lmp, comm, fix_id: str) -> None:
    """Refuse fixes that act on the sum of all forces and, coming first, would lack ours."""
    text = "\n".join(_information(lmp, comm, "fixes"))
    for name, style in re.findall(r"^Fix\[ *\d+\]: *(\S+), *style = (\S+),", text, re.MULTILINE):
        if name == fix_id:
            return  # which attach replaces in its place
        if style.startswith(FORCE_MODIFIERS):
            raise UnsupportedError(
                f"fix {name} of style {style} acts on the sum of all forces: define it after "
                "attach, as LAMMPS applies fixes in the order of their definitions"
            )


def _information(lmp, comm, category: str) -> list[str]:
    """Lines of LAMMPS' command ``info``, which the first rank writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "info"
        lmp.command(f"info {category} out overwrite {path}")
        return comm.allgather(path.read_text() if path.exists() else "")[0].splitlines()


def _communicator(lmp, settings: dict) -> Any:
    """Communicator of LAMMPS' ranks; refuses what several ranks cannot have."""
    ranks = lmp.extract_setting("world_size")
    if ranks == 1:
        return ALONE
    comm = lmp.get_mpi_comm()
    if comm is None or comm.size != ranks:
        raise UnsupportedError(
            f"`lmp` on {ranks} MPI ranks must have the communicator of all of them: install "
            "mpi4py, and use no partitions"
        )
    if settings["backend"] == "reference":
        raise UnsupportedError(
            f"backend 'reference' on {ranks} MPI ranks: use 'auto', 'cpu' or 'cuda'"
        )
    if settings.get("levels"):
        raise UnsupportedError(f"levels on {ranks} MPI ranks: they share one level of boxes")
    return comm


@dataclass(frozen=True, eq=False)
class _Particles:
    """Particles of a rank, in the order of the atoms' IDs.

    Attributes, for n particles with k partners by special bonds:
        tags: IDs, ascending, shape (n,).
        charges: shape (n,), e.
        particle: index of the particle that has the partner, shape (k,), ascending.
        partner: ID of the partner, shape (k,).
        missing: what the factor of the pair lacks to 1, shape (k,), above 0.
    """

    tags: np.ndarray
    charges: np.ndarray
    particle: np.ndarray
    partner: np.ndarray
    missing: np.ndarray

    @property
    def excluded(self) -> np.ndarray:
        """Pairs of IDs that do not interact, shape (m, 2), each on one rank."""
        first = self.tags[self.particle]
        once = (first < self.partner) & (self.missing == 1.0)
        return np.stack([first, self.partner], 1)[once]

    def checksum(self) -> tuple[int, int]:
        """Numbers whose sums over all ranks, modulo 2^64, tell whether particles and partners are
        the same, whatever ranks have them, and whether the charges are."""
        pairs = _hashes(self.tags[self.particle], self.partner, self.missing)
        everyone = _hashes(self.tags)
        charges = _hashes(self.tags, self.charges)
        return int(pairs.sum()) + int(everyone.sum()), int(charges.sum())


def _hashes(*columns: np.ndarray) -> np.ndarray:
    """A number below 2^64 for each row of columns, by the function of G. L. Steele Jr., D. Lea and
    C. H. Flood, doi:10.1145/2660193.2660195."""
    found = np.full(len(columns[0]), len(columns), np.uint64)
    for column in columns:
        wide = np.ascontiguousarray(column, np.float64 if column.dtype.kind == "f" else np.int64)
        found += wide.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
        found ^= found >> np.uint64(31)
    return found


class _SharedSolver:
    """:class:`fmm_openmm.oriented.OrientedSolver` on several ranks."""

    def __init__(self, comm, particles: _Particles, periodic: list[bool], settings: dict):
        options = settings | ({"backend": "cpu"} if settings["backend"] == "auto" else {})
        self._neutralization = OrientedNeutralization(options.pop("neutralization"), periodic)
        self._charges, self._ids = particles.charges, particles.tags

        def make(box, option):
            return DistributedSolver(
                comm,
                self._charges,
                box,
                particles.excluded,
                boundary=BOUNDARIES[sum(periodic)],
                exclusions_periodic=True,
                ids=self._ids,
                neutralization=option,
                **options,
            )

        self._make, self._periodic = make, periodic
        self._option: list | None = None
        self._solver: Any = None  # until there is a cell

    def set_charges(self, charges: np.ndarray, ids: np.ndarray) -> None:
        """Replace the charges of the particles that this rank has now."""
        self._charges, self._ids = charges, ids
        self._solver.set_charges(charges, ids=ids)

    def compute(
        self, positions: np.ndarray, cell: np.ndarray, virial: bool, ids: np.ndarray
    ) -> CoulombResult:
        """The result for the particles that this rank has now."""
        box, rotation = oriented_box(cell, self._periodic)
        option = self._neutralization.option(rotation)
        if self._solver is None or option is not self._option:
            self._option, self._solver = option, self._make(box, option)
        x = positions if rotation is None else positions @ rotation
        result = self._solver.compute(x, box, ids=ids, virial=virial)
        return result if rotation is None else rotated(result, rotation.T)


class _Coupling:
    """The callbacks of LAMMPS in each step; ``comm`` is the communicator of its ranks."""

    def __init__(self, lmp, comm, fix_id: str, settings: dict):
        self._lmp, self._comm, self._id, self._settings = lmp, comm, fix_id, settings
        self._periodic: list[bool] = []
        self._length = UNITS[lmp.extract_global("units")]
        self._styles = self._current_styles()
        self._checksum: list[int] | None = None
        self._solver: Any = None

    def check_particles(self) -> None:
        """Refuse atoms without charges or IDs, and a second interaction of the same charges."""
        with shared_fate(self._comm):
            agree(self._comm, self._check_particles)

    def _check_particles(self) -> None:
        lmp, number = self._lmp, self._lmp.extract_setting("nlocal")
        if lmp.get_natoms() == 0:
            raise ValueError("`lmp` must have atoms: attach after read_data or create_atoms")
        if lmp.extract_atom("q") is None:
            raise ValueError("`lmp` must have charges: use an atom_style with them, such as full")
        tags = lmp.numpy.extract_atom("id")
        if tags is None or (tags[:number] < 1).any() or len(np.unique(tags[:number])) != number:
            raise ValueError("`lmp` must have IDs of atoms: atom_modify id yes")
        if lmp.extract_atom("molindex"):
            raise UnsupportedError(
                "atom_style template keeps special bonds in its molecules, not with the atoms: use "
                "atom_style full"
            )
        OrientedNeutralization(self._settings["neutralization"], lmp.extract_box()[5])

        for fix, callback in lmp.callback.items():
            known = isinstance(callback["caller"], _Coupling) and lmp.has_id("fix", fix)
            if known and fix != self._id:
                raise ValueError(f"`lmp` has the Coulomb interaction already: unfix {fix}")

    def evaluate(self, _caller, step: int, number: int, tags, positions, forces) -> None:
        """Set forces, energy, virial and energies per atom of fix external.

        LAMMPS would ignore an exception. It becomes an error of LAMMPS, which ends the run; the
        results until then are NaN."""
        try:
            self._evaluate(step, number, tags, positions, forces)
        except BaseException as error:
            forces[:] = np.nan
            self._set_results(np.nan, np.full(6, np.nan), np.full(number, np.nan))
            self._end_run(f"fmm_openmm: {error}")

    def _end_run(self, text: str) -> None:
        """End the run, and leave an error that the command raises which has started it.

        LAMMPS keeps the errors of its library until then. Its function ``lammps_error`` would exit.
        The only other error with a text of the caller's is that of a fix that does not exist."""
        self._lmp.lib.lammps_fix_external_set_energy_global(
            self._lmp.lmp, text.encode(), c_double(0.0)
        )
        self._lmp.force_timeout()

    def _evaluate(self, step: int, number: int, tags, positions, forces) -> None:
        lmp = self._lmp
        _check_run_style(lmp)
        if self._current_styles() != self._styles:
            raise UnsupportedError(
                f"pair_style or kspace_style has changed from {self._styles} to "
                f"{self._current_styles()}: attach after these commands"
            )
        order, comm = np.argsort(tags), self._comm
        with shared_fate(comm):
            particles = agree(comm, lambda: self._read_particles(tags[order], order))
        with_virial = lmp.extract_global("vflag_global") == step
        cell, x = self._read_cell(), positions[order] * self._length
        result = self._compute(particles, x, cell, with_virial)
        if comm.allreduce(int((particles.missing < 1.0).any())):
            with shared_fate(comm):
                pairs = agree(comm, lambda: self._scaled_pairs(particles, x, cell))
            result = self._with_scaled_pairs(result, particles, *pairs)
        scale = lmp.extract_global("qqrd2e") * self._length / COULOMB_CONSTANT
        forces[order] = scale * self._length * result.forces
        virial, energies = np.full(6, np.nan), np.empty(number)
        if result.virial is not None:
            virial = scale * np.array([result.virial[component] for component in VOIGT])
        energies[order] = 0.5 * scale * particles.charges * result.potentials
        self._set_results(scale * result.energy, virial, energies)

    def _set_results(self, energy: float, virial: np.ndarray, energies: np.ndarray) -> None:
        """Hand results to fix external; there is no virial per atom, which is not a number."""
        lmp, name, number = self._lmp, self._id.encode(), len(energies)
        lmp.fix_external_set_energy_global(self._id, float(energy))
        lmp.fix_external_set_virial_global(self._id, virial.tolist())
        pointer = POINTER(c_double)
        lmp.lib.lammps_fix_external_set_energy_peratom(
            lmp.lmp, name, energies.ctypes.data_as(pointer)
        )
        unknown = np.full(6, np.nan).ctypes.data_as(pointer)
        lmp.lib.lammps_fix_external_set_virial_peratom(
            lmp.lmp, name, (pointer * number)(*number * [unknown])
        )

    def _current_styles(self) -> tuple[str, str]:
        return self._lmp.extract_global("pair_style"), self._lmp.extract_global("kspace_style")

    def _read_cell(self) -> np.ndarray:
        """The box as rows of vectors, nm. Other periodic directions than in the last step, after
        ``change_box``, need a new solver."""
        low, high, xy, yz, xz, flags, _ = self._lmp.extract_box()
        periodic = [bool(flag) for flag in flags]
        if periodic != self._periodic:
            self._periodic, self._checksum = periodic, None
        x, y, z = np.subtract(high, low)
        return self._length * np.array([[x, 0, 0], [xy, y, 0], [xz, yz, z]])

    def _compute(
        self, particles: _Particles, x: np.ndarray, cell: np.ndarray, virial: bool
    ) -> CoulombResult:
        """The interaction without scaled pairs, by the solver of the last step if it fits."""
        comm, tags, charges = self._comm, particles.tags, particles.charges
        sums = [comm.allreduce(part) % 2**64 for part in particles.checksum()]
        last, self._checksum = self._checksum, None
        numbers = {} if comm is ALONE else {"ids": tags}
        if last is None or last[0] != sums[0]:
            self._solver = self._made(particles)
        elif last != sums:
            self._solver.set_charges(charges, **numbers)
        result = self._solver.compute(x, cell, virial=virial, **numbers)
        self._checksum = sums
        return result

    def _made(self, particles: _Particles) -> Any:
        """A new solver."""
        if self._comm is not ALONE:
            return _SharedSolver(self._comm, particles, self._periodic, self._settings)
        excluded = np.searchsorted(particles.tags, particles.excluded)
        return OrientedSolver(particles.charges, excluded, self._periodic, **self._settings)

    def _read_particles(self, tags: np.ndarray, order: np.ndarray) -> _Particles:
        """The particles of this rank, with partners from LAMMPS' tables: of each atom the IDs of
        its partners, and how many of them are no more than one, two and three bonds away."""
        lmp, number = self._lmp, len(tags)
        charges = lmp.numpy.extract_atom("q")[:number][order]
        counts, partners = lmp.extract_atom("nspecial"), lmp.extract_atom("special")
        width = lmp.extract_setting("maxspecial")
        if not (number and counts and partners and width > 0):
            none = np.empty(0, np.int64)
            return _Particles(tags, charges, none, none, np.empty(0))
        within = lmp.numpy.iarray(c_int, counts, number, 3)[order]
        table = lmp.numpy.iarray(lmp.c_tagint, partners, number, width).reshape(number, -1)[order]
        place = np.arange(table.shape[1])
        bonds = 1 + (place >= within[:, :1]) + (place >= within[:, 1:2])  # between both atoms
        first, column = np.nonzero(place < within[:, 2:])
        missing = 1.0 - np.asarray(lmp.extract_global("special_coul"))[bonds[first, column]]
        lacks = missing > 0.0
        return _Particles(tags, charges, first[lacks], table[first, column][lacks], missing[lacks])

    def _scaled_pairs(
        self, particles: _Particles, x: np.ndarray, cell: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Particles and partners whose factor is between 0 and 1: the index of the particle, the
        displacement to it from the nearest image of the partner, what the factor lacks to 1, and
        the partner's charge."""
        lmp = self._lmp
        everyone = lmp.extract_setting("nlocal") + lmp.extract_setting("nghost")
        tags = lmp.numpy.extract_atom("id")[:everyone]
        scaled = particles.missing < 1.0
        i, wanted = particles.particle[scaled], particles.partner[scaled]
        order = np.argsort(tags, kind="stable")
        j = order[np.minimum(np.searchsorted(tags, wanted, sorter=order), everyone - 1)]
        lost = wanted[tags[j] != wanted]
        if len(lost):
            raise ValueError(
                f"atom {lost[0]} has a scaled interaction with an atom of another rank that has no "
                "copy of it: comm_modify cutoff"
            )
        d = x[i] - lmp.numpy.extract_atom("x")[j] * self._length
        d -= np.rint(d @ np.linalg.inv(cell)) * self._periodic @ cell
        return i, d, particles.missing[scaled], lmp.numpy.extract_atom("q")[j]

    def _with_scaled_pairs(
        self,
        result: CoulombResult,
        particles: _Particles,
        i: np.ndarray,
        d: np.ndarray,
        missing: np.ndarray,
        charges: np.ndarray,
    ) -> CoulombResult:
        """The result less what the scaled pairs lack, ``(1 - f) q_i q_j / r``, half of it at each
        particle of the pair."""
        inverse = COULOMB_CONSTANT * missing / np.linalg.norm(d, axis=1)
        energies = -inverse * particles.charges[i] * charges
        pulls = (energies / (d**2).sum(1))[:, None] * d
        forces, potentials = result.forces.copy(), result.potentials.copy()
        np.add.at(forces, i, pulls)
        np.subtract.at(potentials, i, inverse * charges)
        energy = result.energy + 0.5 * self._comm.allreduce(float(energies.sum()))
        virial = result.virial
        if virial is not None:
            virial = virial + 0.5 * self._comm.allreduce(d.T @ pulls)
        return CoulombResult(energy, forces, potentials, result.fields, virial, result.volume)
