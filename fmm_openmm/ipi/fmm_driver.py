"""``FMMDriver``: Coulomb energies, forces and virials for i-PI, by its interface for drivers."""

import os
from typing import TYPE_CHECKING

import numpy as np

from fmm_openmm.boundary import NAMES
from fmm_openmm.checks import check_charges, check_choice
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.packages import require
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.oriented import OrientedSolver, neutralization_in_nm
from fmm_openmm.planning.request import Request, RequestKeywords
from fmm_openmm.units import BOHR, HARTREE

require("ipi", "ipi")

from ipi.pes.dummy import Dummy_driver  # noqa: E402

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

__DRIVER_NAME__ = "fmm"
__DRIVER_CLASS__ = "FMMDriver"


@lists_options(Request)
class FMMDriver(Dummy_driver):
    """Coulomb interaction of point charges as a driver of i-PI, in atomic units.

    ``i-pi-py_driver -m custom -P $(python -m fmm_openmm.ipi) -o charges=FILE,tolerance=1e-6`` runs
    it; each argument is an option of ``-o``. The results of a structure are the potential energy,
    hartree; the forces, shape (n, 3), hartree/bohr; the virial ``-dE/dstrain``, shape (3, 3),
    hartree; and an empty string.

    Args:
        charges: path of a file with the charges of the atoms in i-PI's order: an ``.npz`` of
            ``fmm-openmm convert`` or :meth:`fmm_openmm.ChargeSystem.save`, whose exclusions and
            boundary are taken as well, or text with a charge in e on each line.
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
        boundary: as in :class:`fmm_openmm.CoulombSolver`; None for that of the ``.npz`` file, or
            "periodic" for text. The cell of i-PI has no meaning with an open boundary.
        precision, backend: as in :class:`fmm_openmm.CoulombSolver`.
        neutralization: as in :class:`fmm_openmm.ase.FMMCalculator`, in bohr; or as text, whose
            numbers spaces separate and whose lines or cylinders ``;`` separates.
        verbose: as in every driver of i-PI.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        OSError: the file cannot be read.
        ValueError, TypeError: an option or the file is invalid, or the number of atoms differs.
        UnsupportedError: at the first structure, a slab or wire has a net charge that nothing
            neutralises, or ``neutralization`` does not fit the boundary.
    """

    @suggests_keywords(like=Request, without=("tolerance", "precision"))
    def __init__(
        self,
        charges: str | os.PathLike,
        tolerance: float = 1e-5,
        boundary: str | None = None,
        precision: str = "auto",
        backend: str = "auto",
        verbose: bool = False,
        neutralization: "ArrayLike | str | None" = None,
        **options: "Unpack[RequestKeywords]",
    ):
        Request(tolerance, precision=precision, **options)  # refuses invalid values
        if boundary is not None:
            check_choice(boundary, tuple(NAMES), "boundary")
        values, exclusions, own_boundary = _read_charges(charges)
        self._periodic = NAMES[boundary or own_boundary]
        self._solver = OrientedSolver(
            values,
            exclusions,
            self._periodic,
            tolerance=tolerance,
            precision=precision,
            backend=backend,
            neutralization=neutralization_in_nm(_as_rows(neutralization), BOHR),
            **options,
        )
        super().__init__(verbose)

    def compute_structure(
        self, cell: np.ndarray, pos: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray, str]:
        """Evaluate one structure.

        Args:
            cell: the cell vectors as columns, shape (3, 3), bohr.
            pos: shape (n, 3), bohr.

        Returns:
            potential energy, hartree; forces, shape (n, 3), hartree/bohr; virial, shape (3, 3),
            hartree; an empty string.
        """
        rows = BOHR * np.transpose(cell) if any(self._periodic) else None
        result = self._solver.compute(BOHR * np.asarray(pos), rows, virial=True)
        virial = np.asarray(result.virial) / HARTREE
        return result.energy / HARTREE, result.forces * (BOHR / HARTREE), virial, ""


def _as_rows(option: "ArrayLike | str | None") -> "ArrayLike | None":
    """The option ``neutralization``, as i-PI reads it from ``-o``: one number is a number."""
    if isinstance(option, (int, float)):
        return [option]
    if not isinstance(option, str):
        return option
    try:
        rows = [[float(number) for number in row.split()] for row in option.split(";")]
    except ValueError:
        raise ValueError(
            "`neutralization` must be numbers separated by spaces, with `;` between lines or "
            f"cylinders, got {option!r}"
        ) from None
    return rows if ";" in option else rows[0]


def _read_charges(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Charges, shape (n,), e, exclusions and the name of the boundary."""
    if os.fspath(path).endswith(".npz"):
        system = ChargeSystem.load(path)
        return system.charges, system.exclusions, system.boundary
    try:
        return check_charges(np.loadtxt(path, ndmin=1)), None, "periodic"
    except ValueError as error:
        raise ValueError(f"`charges`: {path} must have one charge on each line ({error})") from None
