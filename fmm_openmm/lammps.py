"""``attach``: Coulomb energies, forces and virials in LAMMPS, by its fix external.

LAMMPS calls the package once a step, with the positions of its atoms. Charges, box, the factors of
special bonds and units are read from LAMMPS. Particles are kept in the order of their IDs, whatever
order LAMMPS has them in.
"""

import tempfile
from ctypes import POINTER, c_double, c_int
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.backends import BACKENDS
from fmm_openmm.checks import check_choice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.oriented import OrientedSolver
from fmm_openmm.planning.request import Request, RequestKeywords
from fmm_openmm.results import CoulombResult
from fmm_openmm.units import BOHR, COULOMB_CONSTANT

if TYPE_CHECKING:
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
    **options: "Unpack[RequestKeywords]",
) -> None:
    r"""Add the Coulomb interaction of all charges to a LAMMPS simulation.

    .. math:: U = k_e \sum_{i<j} \sum_n{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ special} (1 - f_{ij}) \frac{q_i q_j}{r_{ij}}

    with the Coulomb constant of LAMMPS, dielectric constant included, the factors f of
    ``special_bonds coul``, and images n along the periodic directions of the box. The interaction
    is a ``fix external``, whose energy, virial and energies per atom are counted as those of a pair
    style with a ``kspace_style``; ``unfix`` removes it. Call this function after the atoms have
    been created and the pair styles chosen.

    Args:
        lmp: a ``lammps.lammps`` on one MPI rank.
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
            LAMMPS' accuracy is relative to the force between two charges at 1 A.
        precision, backend: as of :class:`fmm_openmm.CoulombSolver`.
        fix_id: ID of the fix.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; there are no atoms, charges or IDs, or the
            Coulomb interaction has been attached already by another name.
        UnsupportedError: several MPI ranks, a ``kspace_style``, a pair style with electrostatics,
            units in which charges are not in e, or two dimensions.

    An error during a run ends it: LAMMPS raises it with the text of the error.
    """
    if not hasattr(lmp, "set_fix_external_callback"):
        raise TypeError(f"`lmp` must be a lammps.lammps, got {type(lmp).__name__}")
    Request(tolerance, precision=precision, **options)  # refuses invalid values
    check_choice(backend, BACKENDS, "backend")
    _check_supported(lmp)
    periodic = [bool(flag) for flag in lmp.extract_box()[5]]
    settings = {"tolerance": tolerance, "precision": precision, "backend": backend, **options}
    coupling = _Coupling(lmp, fix_id, periodic, settings)
    coupling.check_particles()
    lmp.command(f"fix {fix_id} all external pf/callback 1 1")
    lmp.command(f"fix_modify {fix_id} energy yes virial yes")
    lmp.set_fix_external_callback(fix_id, coupling.evaluate, coupling)


def _check_supported(lmp) -> None:
    """Refuse what has electrostatics already, or cannot have ours."""
    ranks = lmp.extract_setting("world_size")
    if ranks != 1:
        raise UnsupportedError(f"`lmp` must run on one MPI rank, it has {ranks}")
    units = lmp.extract_global("units")
    if units not in UNITS:
        raise UnsupportedError(
            f"units {units!r}: use one of {', '.join(UNITS)}, in which charges are in e"
        )
    if lmp.extract_setting("dimension") != 3:
        raise UnsupportedError("dimension 2: the Coulomb interaction needs three dimensions")
    kspace = lmp.extract_global("kspace_style")
    if kspace != "none":
        raise UnsupportedError(
            f"kspace_style {kspace} computes the Coulomb interaction already: kspace_style none"
        )
    for style in _pair_styles(lmp):
        if any(word in style for word in ELECTROSTATICS):
            raise UnsupportedError(
                f"pair_style {style} has electrostatics of its own: use the style without, such as "
                "lj/cut in place of lj/cut/coul/long"
            )


def _pair_styles(lmp) -> list[str]:
    """Names of the pair styles, those of a hybrid style one by one."""
    style = lmp.extract_global("pair_style")
    if not style.startswith("hybrid"):
        return [style]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "info"
        lmp.command(f"info system out overwrite {path}")
        lines = path.read_text().splitlines()
    names = [line.partition(":")[2] for line in lines if line.startswith("Hybrid sub-styles")]
    return " ".join(names).split()


@dataclass(frozen=True, eq=False)
class _Particles:
    """The particles that a solver is made for, in the order of the atoms' IDs.

    Attributes:
        tags: IDs, ascending, shape (n,).
        special: pairs of special bonds, shape (m, 2).
        missing: what their factors lack to 1, shape (m,).
    """

    tags: np.ndarray
    special: np.ndarray
    missing: np.ndarray

    def same(self, other: "_Particles | None") -> bool:
        return other is not None and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("tags", "special", "missing")
        )

    @property
    def excluded(self) -> np.ndarray:
        return self.special[self.missing == 1.0]

    @property
    def scaled(self) -> np.ndarray:
        """Whether a pair interacts by a factor between 0 and 1, shape (m,)."""
        return (self.missing > 0.0) & (self.missing < 1.0)


class _Coupling:
    """The callbacks of LAMMPS in each step."""

    def __init__(self, lmp, fix_id: str, periodic: list[bool], settings: dict):
        self._lmp, self._id, self._periodic, self._settings = lmp, fix_id, periodic, settings
        self._length = UNITS[lmp.extract_global("units")]
        self._styles = self._current_styles()
        self._particles: _Particles | None = None
        self._solver: OrientedSolver | None = None

    def check_particles(self) -> None:
        """Refuse atoms without charges or IDs, and a second interaction of the same charges."""
        lmp, number = self._lmp, self._lmp.extract_setting("nlocal")
        if number == 0:
            raise ValueError("`lmp` must have atoms: attach after read_data or create_atoms")
        if lmp.extract_atom("q") is None:
            raise ValueError("`lmp` must have charges: use an atom_style with them, such as full")
        tags = lmp.numpy.extract_atom("id")
        if tags is None or tags[:number].min() < 1 or len(np.unique(tags[:number])) != number:
            raise ValueError("`lmp` must have IDs of atoms: atom_modify id yes")

        for fix, callback in lmp.callback.items():
            known = isinstance(callback["caller"], _Coupling) and lmp.has_id("fix", fix)
            if known and fix != self._id:
                raise ValueError(f"`lmp` has the Coulomb interaction already: unfix {fix}")

    def evaluate(self, _caller, step: int, number: int, tags, positions, forces) -> None:
        """Set forces, energy, virial and energies per atom of fix external.

        An exception would be ignored by LAMMPS. It becomes LAMMPS' error, the run is ended, and
        the results until then are not numbers."""
        try:
            self._evaluate(step, number, tags, positions, forces)
        except BaseException as error:
            forces[:] = np.nan
            self._set_results(np.nan, np.full(6, np.nan), np.full(number, np.nan))
            self._end_run(f"fmm_openmm: {error}")

    def _end_run(self, text: str) -> None:
        """End the run, and leave an error that the command raises which has started it.

        LAMMPS keeps the errors of its library until then. Its function ``lammps_error`` would exit;
        the error that text can be given to without is that of a fix that does not exist."""
        self._lmp.lib.lammps_fix_external_set_energy_global(
            self._lmp.lmp, text.encode(), c_double(0.0)
        )
        self._lmp.force_timeout()

    def _evaluate(self, step: int, number: int, tags, positions, forces) -> None:
        lmp = self._lmp
        if self._current_styles() != self._styles:
            raise UnsupportedError(
                f"pair_style or kspace_style has changed from {self._styles} to "
                f"{self._current_styles()}: attach after these commands"
            )
        order = np.argsort(tags)
        charges = lmp.numpy.extract_atom("q")[:number][order]
        with_virial = lmp.extract_global("vflag_global") == step
        cell, x = self._cell(), positions[order] * self._length
        solver = self._solver_for(tags[order], order, charges)
        result = solver.compute(x, cell, virial=with_virial)
        found = self._with_scaled_pairs(result, x, cell, charges)
        scale = lmp.extract_global("qqrd2e") * self._length / COULOMB_CONSTANT
        forces[order] = scale * self._length * found.forces
        virial, energies = np.full(6, np.nan), np.empty(number)
        if found.virial is not None:
            virial = scale * np.array([found.virial[component] for component in VOIGT])
        energies[order] = 0.5 * scale * charges * found.potentials
        self._set_results(scale * found.energy, virial, energies)

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

    def _cell(self) -> np.ndarray:
        """The box as rows of vectors, nm."""
        low, high, xy, yz, xz, *_ = self._lmp.extract_box()
        x, y, z = np.subtract(high, low)
        return self._length * np.array([[x, 0, 0], [xy, y, 0], [xz, yz, z]])

    def _solver_for(
        self, tags: np.ndarray, order: np.ndarray, charges: np.ndarray
    ) -> OrientedSolver:
        """The solver of the last step, if it fits these atoms, or a new one."""
        particles = _Particles(tags.copy(), *self._special_pairs(tags, order))
        if self._solver is None or not particles.same(self._particles):
            self._solver = OrientedSolver(
                charges, particles.excluded, self._periodic, **self._settings
            )
            self._particles = particles
        elif not np.array_equal(charges, self._solver.charges):
            self._solver.set_charges(charges)
        return self._solver

    def _special_pairs(self, tags: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of special bonds, numbered by their IDs, each once, and what their factors lack to
        1, from LAMMPS' tables: of each atom the IDs of its partners, and how many of them are no
        more than one, two and three bonds away."""
        lmp, number = self._lmp, len(tags)
        counts, partners = lmp.extract_atom("nspecial"), lmp.extract_atom("special")
        width = lmp.extract_setting("maxspecial")
        if not (counts and partners and width > 0):
            return np.zeros((0, 2), np.int64), np.zeros(0)
        within = lmp.numpy.iarray(c_int, counts, number, 3)[order]
        table = lmp.numpy.iarray(lmp.c_tagint, partners, number, width).reshape(number, -1)[order]
        place = np.arange(table.shape[1])
        bonds = 1 + (place >= within[:, :1]) + (place >= within[:, 1:2])  # between both atoms
        first, column = np.nonzero(place < within[:, 2:])
        second = np.searchsorted(tags, table[first, column])
        missing = 1.0 - np.asarray(lmp.extract_global("special_coul"))[bonds[first, column]]
        once = (first < second) & (missing > 0.0)
        return np.stack([first, second], 1)[once], missing[once]

    def _with_scaled_pairs(
        self, result: CoulombResult, x: np.ndarray, cell: np.ndarray, charges: np.ndarray
    ) -> CoulombResult:
        """The result less what the scaled pairs lack, ``(1 - f) q_i q_j / r``."""
        particles = self._particles
        if particles is None or not particles.scaled.any():
            return result
        i, j = particles.special[particles.scaled].T
        d = x[i] - x[j]
        d -= np.rint(d @ np.linalg.inv(cell)) * self._periodic @ cell
        inverse = COULOMB_CONSTANT * particles.missing[particles.scaled] / np.linalg.norm(d, axis=1)
        energies = -inverse * charges[i] * charges[j]
        pulls = (energies / (d**2).sum(1))[:, None] * d
        forces, potentials = result.forces.copy(), result.potentials.copy()
        for one, other, sign in ((i, j, 1.0), (j, i, -1.0)):
            np.add.at(forces, one, sign * pulls)
            np.subtract.at(potentials, one, inverse * charges[other])
        virial = None if result.virial is None else result.virial + d.T @ pulls
        energy = result.energy + energies.sum()
        return CoulombResult(energy, forces, potentials, result.fields, virial, result.volume)
