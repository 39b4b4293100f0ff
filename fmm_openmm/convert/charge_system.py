"""``ChargeSystem``: the charges, positions, box and exclusions of a system."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.boundary import Boundary, net_charge
from fmm_openmm.checks import (
    check_charges,
    check_exclusions,
    check_flag,
    check_numbers,
    check_positions,
)
from fmm_openmm.convert import openmm_system, packages, storage
from fmm_openmm.convert.cells import reduce_box
from fmm_openmm.options import suggests_keywords
from fmm_openmm.planning.request import RequestKeywords
from fmm_openmm.solver import CoulombSolver

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    class CoulombKeywords(RequestKeywords, total=False):
        """Keywords of :class:`CoulombSolver` other than charges, box vectors and exclusions."""

        tolerance: float
        boundary: str
        precision: str
        backend: str
        exclusions_periodic: bool
        positions: "ArrayLike | None"
        method: str
        slab_correction: bool
        surface_dielectric: float
        neutralization: "ArrayLike | None"


KIND = "fmm_openmm ChargeSystem"
VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class ChargeSystem:
    """Charges, positions, box and exclusions of one system.

    Attributes:
        charges: shape (n,) float64, in e.
        positions: shape (n, 3) float64, in nm; None if the source has none.
        box_vectors: rows a, b, c of the periodic cell in OpenMM's reduced form, shape (3, 3)
            float64, in nm; None for a system in free space. A lower-triangular cell that is not
            reduced is replaced by the reduced cell of the same lattice; in a slab or wire, and in
            a solver with its boundary, only vectors with images reduce others.
        exclusions: pairs i < j whose bare q_i q_j / r is excluded from the sum, sorted, each once,
            shape (m, 2) int32. All exceptions of OpenMM, zero or scaled, are exclusions here; the
            scaled interaction of an exception remains in the force that defines it.
        exclusions_periodic: whether exclusions apply to the nearest periodic image of a pair (True)
            or to the displacement that the positions give (False), OpenMM's default.
        boundary: box vectors along which there are images, a name as in
            :class:`fmm_openmm.CoulombSolver`; by default "periodic" with a box, "open" without.

    Raises:
        ValueError: there are no particles; an array has a wrong shape, the wrong dimension or a
            value that is not finite; the box has no volume; an exclusion is out of range, listed
            twice, or of a particle with itself; or the boundary contradicts the box. The message
            names the argument and the entry.

    Example:
        >>> positions = [[0, 0, 0], [0.3, 0, 0]]
        >>> ChargeSystem([1.0, -1.0], positions=positions, box_vectors=2 * np.eye(3))
        ChargeSystem(2 particles, total charge 0 e, periodic, 0 exclusions)
    """

    charges: np.ndarray
    positions: np.ndarray | None = None
    box_vectors: np.ndarray | None = None
    exclusions: np.ndarray = ()  # type: ignore[assignment]
    exclusions_periodic: bool = False
    boundary: str = ""
    _given_box: np.ndarray | None = field(default=None, init=False)

    if TYPE_CHECKING:  # a caller may give anything that makes an array

        def __init__(
            self,
            charges: ArrayLike,
            positions: ArrayLike | None = None,
            box_vectors: ArrayLike | None = None,
            exclusions: ArrayLike = (),
            exclusions_periodic: bool = False,
            boundary: str = "",
        ) -> None: ...

    def __post_init__(self):
        charges = check_charges(self.charges)
        exclusions = check_exclusions(self.exclusions, len(charges)).astype(np.int32)
        # the class is frozen: these are the checked values of its own fields
        set_field = object.__setattr__
        set_field(self, "charges", charges)
        set_field(self, "exclusions", exclusions)
        periodic = check_flag(self.exclusions_periodic, "exclusions_periodic")
        set_field(self, "exclusions_periodic", periodic)
        if self.positions is not None:
            set_field(self, "positions", check_positions(self.positions, len(charges)))
        if self.box_vectors is not None:
            given = check_numbers(self.box_vectors, "nanometer", "box_vectors")
            set_field(self, "_given_box", given)
            boundary = Boundary.from_name(str(self.boundary) or "periodic")
            set_field(self, "box_vectors", reduce_box(given, boundary))
        set_field(self, "boundary", self._checked_boundary())

    def _checked_boundary(self) -> str:
        """The first name of the boundary, which goes with the box."""
        has_box, name = self.box_vectors is not None, str(self.boundary)
        if not name:
            return Boundary((has_box,) * 3).name
        boundary = Boundary.from_name(name)
        if boundary.is_open == has_box:
            raise ValueError(
                f"`boundary={name!r}` does not go with {'' if has_box else 'missing '}`box_vectors`"
            )
        return boundary.name

    def __len__(self) -> int:
        return len(self.charges)

    def __repr__(self) -> str:
        return (
            f"ChargeSystem({len(self)} particles, total charge {net_charge(self.charges):.6g} e, "
            f"{self.boundary}, "
            f"{len(self.exclusions)} exclusions"
            f"{', no positions' if self.positions is None else ''})"
        )

    @suggests_keywords(like=CoulombSolver, without=("charges", "box_vectors", "exclusions"))
    def solver(self, **options: "Unpack[CoulombKeywords]") -> CoulombSolver:
        """A :class:`fmm_openmm.CoulombSolver` for this system.

        Args:
            options: keyword arguments of the solver. The default boundary is that of the system.

        Raises:
            TypeError: an unknown keyword.
            ValueError, UnsupportedError: as :class:`fmm_openmm.CoulombSolver`.
        """
        options.setdefault("boundary", self.boundary)
        options.setdefault("exclusions_periodic", self.exclusions_periodic)
        options.setdefault("positions", self.positions)
        box_vectors, boundary = self._given_box, Boundary.from_name(options["boundary"])
        if box_vectors is not None:
            box_vectors = None if boundary.is_open else reduce_box(box_vectors, boundary)
        return CoulombSolver(self.charges, box_vectors, exclusions=self.exclusions, **options)

    def save(self, path: str | os.PathLike) -> None:
        """Write all attributes to ``path``, an ``.npz`` file with a checksum. An existing file is
        replaced.

        Raises:
            OSError: the file cannot be written; an existing file is unchanged.
        """
        arrays = {
            "charges": self.charges,
            "exclusions": self.exclusions,
            "exclusions_periodic": np.array(self.exclusions_periodic),
        }
        if Boundary.from_name(self.boundary).is_partial:
            arrays["boundary"] = np.array(self.boundary)
        optional = {"positions": self.positions, "box_vectors": self._given_box}
        arrays |= {name: array for name, array in optional.items() if array is not None}
        storage.write(path, KIND, VERSION, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ChargeSystem":
        """Read a file that :meth:`save` wrote.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is damaged, has another format, or was written by a newer version.
        """
        arrays = storage.read(path, KIND, VERSION)
        values: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in arrays.items()}
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(
                f"{path} holds {', '.join(sorted(arrays))}, which do not make a {KIND}"
            ) from error

    @classmethod
    def from_openmm(cls, system, positions: "ArrayLike | None" = None) -> "ChargeSystem":
        """Read the charges, exclusions and boundary of the :class:`FMMForce` of an
        ``openmm.System``, or of its ``NonbondedForce`` if it has no FMMForce.

        A charge is its base value plus its parameter offsets at the parameters' defaults. Every
        exception of a NonbondedForce becomes an exclusion. The box is the System's default one
        if the force is periodic, else None. Charges of several FMMForces, and of an additional
        NonbondedForce, are added. In a slab or wire, particles that were wrapped along box vectors
        without images are moved next to the others, as by an FMMForce.

        Args:
            system: an ``openmm.System``.
            positions: shape (n, 3), plain numbers in nm or a ``Quantity``; optional.

        Raises:
            UnsupportedError: the System has no FMMForce and not exactly one NonbondedForce with
                charges, or several forces with charges whose exclusions or boundaries differ.
            ValueError: there are no particles; the positions have the wrong shape or dimension; or
                a value is not finite.
        """
        return cls(**openmm_system.charges_of_system(system, positions))

    @classmethod
    def from_topology(
        cls, topology, forcefield, positions: "ArrayLike | None" = None
    ) -> "ChargeSystem":
        """Assign charges to a topology by a force field: ``forcefield.createSystem``, then
        :meth:`from_openmm`.

        Args:
            topology: an ``openmm.app.Topology``, with all hydrogens and extra particles; its box
                makes it periodic.
            forcefield: an ``openmm.app.ForceField``, or the name of a force field file, or a list
                of names.
            positions: as in :meth:`from_openmm`.

        Raises:
            TypeError: an argument is not a Topology or not a force field.
            ValueError: OpenMM cannot read a file, or a residue has no template; also as
                :meth:`from_openmm`.
        """
        return cls(**openmm_system.charges_of_topology(topology, forcefield, positions))

    @classmethod
    def from_mdtraj(
        cls, trajectory, charges_or_forcefield, frame: int = 0, bonds=None
    ) -> "ChargeSystem":
        """Convert one frame of an ``mdtraj.Trajectory``, which is in nm and holds no charges.

        Args:
            trajectory: positions, box and topology.
            charges_or_forcefield: charges, shape (n,), in e; or a force field as in
                :meth:`from_topology`. With charges, particles within three bonds of each other are
                excluded, at their nearest image.
            frame: index of the frame; negative indices count from the end.
            bonds: with charges, pairs of indices that replace the bonds of the topology, shape (m,
                2); ``[]`` for none. MDTraj knows only the bonds of common residues.

        Raises:
            ImportError: mdtraj is not installed (extra ``mdtraj``).
            TypeError, ValueError: the frame does not exist, the charges have another shape, the
                cell has no volume, or charges were given without ``bonds`` and an atom that is not
                alone in its residue has no bond; also as :meth:`from_topology`.
        """
        return cls(**packages.from_mdtraj(trajectory, charges_or_forcefield, frame, bonds))

    @classmethod
    def from_parmed(cls, structure) -> "ChargeSystem":
        """Convert a parametrised ``parmed.Structure``, in Angstrom. Its NonbondedForce is read as
        by :meth:`from_openmm`.

        Raises:
            ImportError: ParmEd is not installed (extra ``parmed``).
            ValueError: the structure has no parameters, an extra point without a bond, Drude
                particles, a cell without volume, or GROMACS exclusions that ParmEd does not keep.
        """
        return cls(**packages.from_parmed(structure))

    @classmethod
    def from_mdanalysis(cls, universe, bonds=None) -> "ChargeSystem":
        """Convert the present frame of an ``MDAnalysis.Universe`` or ``AtomGroup``, in Angstrom.

        Particles within three bonds of each other are excluded, at their nearest image, since a
        trajectory may break molecules across the box. A virtual site needs a bond to its molecule,
        from which its exclusions follow. The exclusions of a Drude particle cannot be derived from
        bonds: for Drude models create a System and use :meth:`from_openmm`.

        Args:
            universe: atoms with charges, and with bonds unless ``bonds`` is given. Only the atoms
                of an AtomGroup are used; the bonds between them may lead through other atoms.
            bonds: pairs of indices that replace the bonds of the universe, shape (m, 2), counted
                in the AtomGroup; ``[]`` for none.

        Raises:
            ImportError: MDAnalysis is not installed (extra ``mdanalysis``).
            ValueError: there are no charges or no bonds, ``bonds`` are not pairs of particles, the
                cell has no volume, or, without ``bonds``, there are Drude particles, or a charged
                atom that is not alone in its residue has no bond.
        """
        return cls(**packages.from_mdanalysis(universe, bonds))

    @classmethod
    def from_ase(cls, atoms, bonds=()) -> "ChargeSystem":
        """Convert an ``ase.Atoms`` with initial charges, in Angstrom.

        ASE has no bonds: pass those of molecules as ``bonds``.

        OpenMM requires a along x and b in the x-y plane. A cell of another orientation is rotated
        **together with its positions**: energies and potentials do not change, but forces refer to
        the rotated frame.

        Args:
            atoms: ``atoms.pbc`` becomes the boundary. Vectors without images are replaced by
                vectors of the same lengths, perpendicular to those with images.
            bonds: pairs of indices, shape (m, 2), none by default; particles within three bonds are
                excluded, at their nearest image.

        Raises:
            ImportError: ASE is not installed (extra ``ase``).
            ValueError: the atoms have no initial charges, ``bonds`` are not pairs of particles, or
                the cell has no volume.
        """
        return cls(**packages.from_ase(atoms, bonds))
