"""``FMMCalculator``: Coulomb energies, forces and stresses as a calculator of ASE."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.backends import BACKENDS
from fmm_openmm.checks import check_charges, check_choice, check_integer_pairs
from fmm_openmm.convert.packages import NM_PER_ANGSTROM, require
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.oriented import OrientedSolver, neutralization_in_nm
from fmm_openmm.planning.request import Request, RequestKeywords
from fmm_openmm.results import CoulombResult
from fmm_openmm.units import COULOMB_CONSTANT

require("ase", "ase")

from ase import Atoms, units  # noqa: E402
from ase.calculators.calculator import (  # noqa: E402
    Calculator,
    PropertyNotImplementedError,
    all_changes,
)
from ase.outputs import Properties  # noqa: E402
from ase.stress import full_3x3_to_voigt_6_stress  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

EV = units.Hartree * units.Bohr * NM_PER_ANGSTROM / COULOMB_CONSTANT
"""1 kJ/mol in eV. The Coulomb constant of the results is ASE's own."""


@lists_options(Request)
class FMMCalculator(Calculator):
    r"""Coulomb interaction of point charges for ASE, by the fast multipole method.

    .. math:: U = \frac{1}{2} \frac{e^2}{4 \pi \epsilon_0} \sum_{i,j} \sum_n{}'
                  \frac{q_i q_j}{|x_i - x_j - n|} - \text{excluded pairs}

    The sum over n runs over the periodic images along the directions that ``atoms.pbc`` names. With
    three of them the boundary is tin-foil, and a uniform background neutralises a net charge. The
    cell may have any orientation. Combine it with a calculator of short-range interactions by
    ``ase.calculators.mixing.SumCalculator``.

    ``results`` has, in ASE's units, ``energy`` and ``free_energy``, eV; ``forces`` (n, 3), eV/A;
    ``charges`` (n,), e; ``potentials`` at the atoms (n,), V; ``fields`` (n, 3), V/A; and, once it
    was requested, ``stress`` (6,), dE/dstrain over the volume of the cell in the order
    xx, yy, zz, yz, xz, xy, eV/A^3.

    Args:
        charges: shape (n,), e; None for ``atoms.get_initial_charges()``.
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
        exclusions: pairs of atoms that do not interact, at their nearest image, shape (m, 2).
        precision, backend: as in :class:`fmm_openmm.CoulombSolver`.
        neutralization: what carries the opposite of the net charge of atoms that are periodic
            along one or two vectors, as in :class:`fmm_openmm.CoulombSolver`, in A. Heights are
            along the normal, upwards as x, y or z is, if the vector a, b or c has no images. For
            the stress a strain moves sheets, lines and cylinders with the atoms.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; or, in a calculation, the atoms have no
            charges, their number differs from that of the charges, or the cell has no volume.
        UnsupportedError: in a calculation, the atoms are periodic along one or two vectors and have
            a net charge that nothing neutralises; or ``neutralization`` does not fit ``atoms.pbc``.
        PropertyNotImplementedError: the stress of atoms whose cell has no volume was requested.

    Example:
        >>> from ase.build import bulk
        >>> salt = bulk("NaCl", "rocksalt", a=5.64)
        >>> salt.calc = FMMCalculator(charges=[1, -1], tolerance=1e-8)
        >>> round(salt.get_potential_energy(), 4)  # -1.74756 e^2 / (4 pi epsilon_0) / 2.82 A
        -8.9235
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress", "charges"]  # noqa: RUF012

    @suggests_keywords(like=Request, without=("tolerance", "precision"))
    def __init__(
        self,
        charges: "ArrayLike | None" = None,
        tolerance: float = 1e-5,
        exclusions: "ArrayLike | Sequence" = (),
        precision: str = "auto",
        backend: str = "auto",
        neutralization: "ArrayLike | None" = None,
        **options: "Unpack[RequestKeywords]",
    ):
        super().__init__()
        Request(tolerance, precision=precision, **options)  # refuses invalid values
        check_choice(backend, BACKENDS, "backend")
        self._charges = None if charges is None else check_charges(charges)
        self._exclusions = check_integer_pairs(exclusions, "exclusions")
        self._options: dict[str, Any] = {
            "tolerance": tolerance,
            "precision": precision,
            "backend": backend,
            "neutralization": neutralization_in_nm(neutralization, NM_PER_ANGSTROM),
            **options,
        }
        self._solver: OrientedSolver | None = None
        self._solves_for: tuple = ()

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        """Calculate all results but the stress, and the stress if ``properties`` names it."""
        super().calculate(atoms, properties, system_changes)
        atoms, with_stress = self.atoms, "stress" in properties
        if with_stress and atoms.cell.rank < 3:
            raise PropertyNotImplementedError(
                f"`stress` needs a cell that spans a volume, got {atoms.cell.array.tolist()}"
            )
        charges = self._charges_of(atoms)
        result = self._solver_for(atoms, charges).compute(
            atoms.positions * NM_PER_ANGSTROM,
            atoms.cell.array * NM_PER_ANGSTROM if atoms.pbc.any() else None,
            virial=with_stress,
        )
        self.results = _in_units_of_ase(result, charges)
        if with_stress:
            stress = -EV * result.virial / atoms.get_volume()
            self.results["stress"] = full_3x3_to_voigt_6_stress(stress)

    def set(self, **parameters) -> dict:
        """Refuse parameters, which are those given at creation.

        Raises:
            TypeError: there are any.
        """
        if parameters:
            raise TypeError(
                f"`set` cannot change {', '.join(parameters)}: make another FMMCalculator, or "
                "leave out `charges` at creation and use atoms.set_initial_charges(...)"
            )
        return {}

    def export_properties(self) -> Properties:
        """The results that ASE knows, which are all but potentials and fields."""
        known = [name for name in self.implemented_properties if name in self.results]
        return Properties({name: self.results[name] for name in known})

    def _charges_of(self, atoms: Atoms) -> np.ndarray:
        if self._charges is None:
            if not atoms.has("initial_charges"):
                raise ValueError(
                    "`atoms` has no charges: pass `charges`, or set them with "
                    "atoms.set_initial_charges(...)"
                )
            return check_charges(atoms.get_initial_charges())
        if len(self._charges) != len(atoms):
            raise ValueError(
                f"`charges` must have shape (n,) with n = {len(atoms)} (from `atoms`), "
                f"got {self._charges.shape}"
            )
        return self._charges

    def _solver_for(self, atoms: Atoms, charges: np.ndarray) -> OrientedSolver:
        """The solver of the last calculation, if it fits these atoms, or a new one."""
        wanted = (len(atoms), *atoms.pbc.tolist())
        if self._solver is None or self._solves_for != wanted:
            self._solver = OrientedSolver(charges, self._exclusions, atoms.pbc, **self._options)
            self._solves_for = wanted
        elif not np.array_equal(charges, self._solver.charges):
            self._solver.set_charges(charges)
        return self._solver


def _in_units_of_ase(result: CoulombResult, charges: np.ndarray) -> dict:
    """Results by ASE's names, in eV, A and e."""
    energy, per_length = EV * result.energy, EV * NM_PER_ANGSTROM
    return {
        "energy": energy,
        "free_energy": energy,
        "forces": per_length * result.forces,
        "charges": charges.copy(),
        "potentials": EV * result.potentials,
        "fields": per_length * result.fields,
    }
