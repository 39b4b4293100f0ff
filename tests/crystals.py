"""Perfect crystals whose lattice energy is known:
``energy = -COULOMB_CONSTANT * units * madelung / distance`` a cell.

Every crystal stands here with its conventional cell and, where that differs, with its primitive
cell in OpenMM's reduced form: the same energy per unit, from a cell with tilts of exactly 1/2. The
Wigner lattices are single charges in the uniform background.
"""

from dataclasses import dataclass, replace

import numpy as np

from fmm_openmm.units import COULOMB_CONSTANT

SAKAMOTO = "Y. Sakamoto, J. Chem. Phys. 28, 164 (1958), doi:10.1063/1.1744060"
NACL = (
    "OEIS A085469, after R. E. Crandall, J. P. Buhler, J. Phys. A 20, 5497 (1987), "
    "doi:10.1088/0305-4470/20/16/024"
)
CSCL = f"OEIS A181152, after {SAKAMOTO}"
GLASSER = "L. Glasser, Inorg. Chem. 51, 2420 (2012), doi:10.1021/ic2023852"
WIGNER = (
    "R. A. Coldwell-Horsfall and A. A. Maradudin, J. Math. Phys. 1, 395 (1960), "
    "doi:10.1063/1.1703670, eq. (A21)"
)


@dataclass(frozen=True)
class Crystal:
    """One cell: positions (n, 3) nm, charges (n,) e, box_vectors (3, 3) nm with rows a, b, c."""

    positions: np.ndarray
    charges: np.ndarray
    box_vectors: np.ndarray
    distance: float
    """nm: the length that the Madelung constant is referred to."""
    madelung: float
    units: float
    """Formula units a cell; half the charges for a Wigner lattice,
    whose constant is quoted in rydberg."""
    digits: float
    """Relative uncertainty of the published constant."""
    origin: str

    @property
    def energy(self):
        """Lattice energy of the cell in kJ/mol."""
        return -COULOMB_CONSTANT * self.units * self.madelung / self.distance

    def supercell(self, n1, n2, n3):
        """n1 x n2 x n3 cells as one; of a triclinic cell it is reduced when the
        three numbers are equal."""
        shifts = np.stack(
            np.meshgrid(*(np.arange(n) for n in (n1, n2, n3)), indexing="ij"), -1
        ).reshape(-1, 1, 3)
        return replace(
            self,
            positions=(self.positions + shifts @ self.box_vectors).reshape(-1, 3),
            charges=np.tile(self.charges, n1 * n2 * n3),
            box_vectors=self.box_vectors * np.array([[n1], [n2], [n3]]),
            units=self.units * n1 * n2 * n3,
        )


CUBIC = np.eye(3)
FCC = np.sqrt(0.5) * np.array(
    [[1, 0, 0], [0.5, np.sqrt(0.75), 0], [0.5, np.sqrt(1 / 12), np.sqrt(2 / 3)]]
)
BCC = np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0.5]])
HEXAGONAL = np.array([[1, 0, 0], [-0.5, np.sqrt(0.75), 0], [0, 0, np.sqrt(8 / 3)]])
ORTHOHEXAGONAL = np.diag([1, np.sqrt(3), np.sqrt(8 / 3)])

CORNER = np.zeros((1, 3))
CENTRED = np.array([[0, 0, 0], [0.5, 0.5, 0.5]])
FACES = 0.5 * np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
TETRAHEDRON = 0.25 * np.array([[1, 1, 1], [1, 3, 3], [3, 1, 3], [3, 3, 1]])
LAYERS = np.array([[1 / 3, 2 / 3, 0], [2 / 3, 1 / 3, 0.5]])
ORTHO_LAYERS = np.array([[0, 0, 0], [0.5, 0.5, 0], [0.5, -1 / 6, 0.5], [0, 1 / 3, 0.5]])
RAISED = np.array([0, 0, 3 / 8])


def crystal(edge, lattice, species, distance, madelung, units, digits, origin):
    """A Crystal from a lattice and a distance in units of `edge` (nm) and
    [(charge, fractional positions)]."""
    box = edge * lattice
    points = np.concatenate([points for _, points in species])
    charges = np.concatenate([np.full(len(points), float(charge)) for charge, points in species])
    return Crystal(points @ box, charges, box, edge * distance, madelung, units, digits, origin)


def rocksalt(lattice, sites):
    species = [(1, sites), (-1, sites + 0.5)]
    return crystal(0.564, lattice, species, 0.5, 1.747564594633182, len(sites), 1e-15, NACL)


def zincblende(lattice, sites):
    species = [(1, sites), (-1, sites + 0.25)]
    return crystal(
        0.5409, lattice, species, 0.75**0.5 / 2, 1.63805505338879, len(sites), 3e-15, SAKAMOTO
    )


def fluorite(lattice, sites):
    species = [(2, sites), (-1, sites + 0.25), (-1, sites - 0.25)]
    return crystal(0.5463, lattice, species, 1.0, 11.6365752270768, len(sites), 1e-14, GLASSER)


def wurtzite(lattice, sites):
    """Ideal: c/a = sqrt(8/3), u = 3/8."""
    species = [(1, sites), (-1, sites + RAISED)]
    return crystal(0.3811, lattice, species, 0.375**0.5, 1.64132, len(sites), 3e-6, GLASSER)


def wigner(lattice, sites, madelung):
    """The constant refers to the radius of the sphere that holds one charge."""
    radius = (3 * np.linalg.det(lattice) / (4 * np.pi * len(sites))) ** (1 / 3)
    return crystal(1.0, lattice, [(1, sites)], radius, madelung, len(sites) / 2, 4e-6, WIGNER)


CRYSTALS = {
    "nacl": rocksalt(CUBIC, FACES),
    "nacl_primitive": rocksalt(FCC, CORNER),
    "cscl": crystal(
        0.4123,
        CUBIC,
        [(1, CORNER), (-1, CORNER + 0.5)],
        0.75**0.5,
        1.762674773070988,
        1,
        1e-15,
        CSCL,
    ),
    "zincblende": zincblende(CUBIC, FACES),
    "zincblende_primitive": zincblende(FCC, CORNER),
    "wurtzite": wurtzite(ORTHOHEXAGONAL, ORTHO_LAYERS),
    "wurtzite_primitive": wurtzite(HEXAGONAL, LAYERS),
    "fluorite": fluorite(CUBIC, FACES),
    "fluorite_primitive": fluorite(FCC, CORNER),
    "cuprite": crystal(
        0.427, CUBIC, [(-2, CENTRED), (1, TETRAHEDRON)], 1.0, 10.2594570330750, 2, 1e-14, GLASSER
    ),
    "wigner_sc": wigner(CUBIC, CORNER, 1.7601188),
    "wigner_bcc": wigner(CUBIC, CENTRED, 1.791860),
    "wigner_bcc_primitive": wigner(BCC, CORNER, 1.791860),
    "wigner_fcc": wigner(CUBIC, FACES, 1.791753),
    "wigner_fcc_primitive": wigner(FCC, CORNER, 1.791753),
}
