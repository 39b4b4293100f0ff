"""Definition of an ``FMMForce``: data on the host that can be edited, copied, serialised and
compared."""

import json
import zlib
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import unwrap
from fmm_openmm.checks import check_charges, check_exclusions, check_flag
from fmm_openmm.integration.options import Options
from fmm_openmm.integration.table import Table, unpacked
from fmm_openmm.neutralization import Neutralization
from fmm_openmm.solver import CoulombSolver
from fmm_openmm.units import strip_units

FORMAT = 2
"""Version of the packed form. Increase it when :meth:`Definition.pack` changes, and keep reading
the old versions."""

TABLES = {
    "charges": (np.float64, 1),
    "exclusions": (np.int32, 2),
    "offset_targets": (np.int32, 2),
    "offset_scales": (np.float64, 1),
}
"""Type and number of columns of the tables of a definition."""

LAST = np.iinfo(np.int32).max
"""Largest index of a particle in the tables."""


def pair_set(pairs: np.ndarray) -> set[tuple[int, int]]:
    """Set of pairs of particles, given as shape (k, 2), the smaller index first."""
    return set(map(tuple, np.sort(pairs, axis=1).tolist()))


@dataclass(frozen=True, eq=False)
class Structure:
    """Number of particles, excluded pairs and boundary, for which a solver is built.

    Attributes:
        particles: number of particles.
        exclusions: shape (m, 2), int32.
        periodic: whether exclusions apply to minimum images.
        boundary: along which axes there are periodic images.
    """

    particles: int
    exclusions: np.ndarray
    periodic: bool
    boundary: Boundary

    def with_boundary(self, name: str | None) -> "Structure":
        """The structure with the boundary of this name, which must need box vectors if the present
        one does; the structure itself for None.

        Raises:
            ValueError: no boundary has this name, or it contradicts the box vectors.
        """
        if name is None:
            return self
        boundary = Boundary.from_name(name)
        if boundary.is_open != self.boundary.is_open:
            raise ValueError(
                f"`boundary={name!r}` does not fit a System whose boundary is {self.boundary.name}"
            )
        return replace(self, boundary=boundary)

    def cell(self, box_vectors: np.ndarray) -> np.ndarray | None:
        """Box vectors for the solver from those of a Context; None in free space."""
        return None if self.boundary.is_open else box_vectors

    def unwrapped(
        self,
        positions: np.ndarray,
        box_vectors: np.ndarray,
        neutralization: Neutralization | None = None,
    ) -> np.ndarray:
        """Positions, shape (n, 3), nm, with OpenMM's wrapping along box vectors without images
        undone: in a slab or wire by :func:`fmm_openmm.box.unwrap`, next to what neutralises it,
        else unchanged."""
        if not self.boundary.is_partial:
            return positions
        found = unwrap(positions, box_vectors, self.boundary)
        return found if neutralization is None else neutralization.place(found, box_vectors)

    def solver(
        self, options: Options, charges: np.ndarray, cell: np.ndarray | None, positions
    ) -> CoulombSolver:
        """A solver for charges, shape (n,), e, box vectors, shape (3, 3), nm, or None, and typical
        positions, shape (n, 3), nm."""
        return CoulombSolver(
            charges,
            cell,
            self.exclusions,
            boundary=self.boundary.name,
            exclusions_periodic=self.periodic,
            positions=positions,
            **options.of_solver(),
        )


@dataclass(frozen=True, eq=False)
class Parameters:
    """Charges and how they depend on global parameters: ``charge = base + sum(scale * value)``.

    Attributes:
        base: shape (n,), e.
        names: names of the global parameters.
        defaults: their values in Contexts that do not define them.
        targets: for each offset the index into ``names`` and the particle, shape (k, 2).
        scales: for each offset its scale, shape (k,), e per unit of the parameter.
    """

    base: np.ndarray
    names: tuple[str, ...]
    defaults: tuple[float, ...]
    targets: np.ndarray
    scales: np.ndarray
    _latest: dict = field(default_factory=dict, repr=False)

    def charges(self, values) -> np.ndarray:
        """Charges for values of the global parameters; the same array as long as these do not
        change."""
        key = self.values(values)
        if key not in self._latest:
            charges = self.base.copy()
            np.add.at(
                charges,
                self.targets[:, 1],
                self.scales * np.array(key)[self.targets[:, 0]] if key else 0.0,
            )
            self._latest.clear()
            self._latest[key] = charges
        return self._latest[key]

    def values(self, values) -> tuple[float, ...]:
        """The value of each global parameter in a mapping by name, or its default."""
        return tuple(map(values.get, self.names, self.defaults))

    def slopes(self) -> np.ndarray:
        """Derivatives of the charges with respect to each of p global parameters, shape (p, n), e
        per unit of the parameter."""
        slopes = np.zeros((len(self.names), len(self.base)))
        np.add.at(slopes, (self.targets[:, 0], self.targets[:, 1]), self.scales)
        return slopes

    def derivatives(self, potentials: np.ndarray) -> dict[str, float]:
        """``{name: sum(scale * potential)}``, the derivative of the energy with respect to each
        global parameter."""
        terms = self.scales * potentials[self.targets[:, 1]]
        sums = np.bincount(self.targets[:, 0], weights=terms, minlength=len(self.names))
        return {name: float(value) for name, value in zip(self.names, sums, strict=True)}

    def digest_parts(self) -> tuple:
        """Parts of a digest that identifies the parameters."""
        return (self.base.tobytes(), self.names, self.targets.tobytes(), self.scales.tobytes())


class Definition:
    """The editable definition of an :class:`FMMForce`.

    Attributes:
        options: :class:`Options`.
        charges: :class:`Table` (n, 1), e.
        exclusions: :class:`Table` (m, 2).
        exclusions_periodic: bool.
        boundary: :class:`fmm_openmm.boundary.Boundary`.
        global_parameters: list of (name, default).
        offset_targets: :class:`Table` (k, 2): global parameter, particle.
        offset_scales: :class:`Table` (k, 1).
        original: the packed :class:`fmm_openmm.integration.conversion.original.Original` of a
            converted NonbondedForce, or None.
        structure_version: number of changes of particles, exclusions and boundary.
    """

    def __init__(self, options: Options):
        self.options = options
        self.charges, self.exclusions, self.offset_targets, self.offset_scales = (
            Table(*kind) for kind in TABLES.values()
        )
        self.exclusions_periodic = False
        self.boundary = Boundary()
        self.global_parameters: list[tuple[str, float]] = []
        self.original: dict | None = None
        self.structure_version = 0
        self._excluded: set[tuple[int, int]] | None = set()
        self._structure: Structure | None = None
        self._parameters: Parameters | None = None

    # reading

    @property
    def structure(self) -> Structure:
        """The present structure; the same object until it changes.

        Raises:
            ValueError: an excluded particle does not exist or, in a definition read from a file, a
                pair is invalid.
        """
        if self._structure is None:
            particles = len(self.charges)
            pairs = check_exclusions(
                self.exclusions.rows, particles, "exclusions of the FMMForce"
            ).astype(np.int32)
            self._structure = Structure(particles, pairs, self.exclusions_periodic, self.boundary)
        return self._structure

    @property
    def parameters(self) -> Parameters:
        """The present charges and offsets; the same object until they change."""
        if self._parameters is None:
            self._check_parameters()
            self._parameters = Parameters(
                self.charges.rows[:, 0].copy(),
                tuple(name for name, _ in self.global_parameters),
                tuple(default for _, default in self.global_parameters),
                self.offset_targets.rows.copy(),
                self.offset_scales.rows[:, 0].copy(),
            )
        return self._parameters

    def _check_parameters(self) -> None:
        """Refuse offsets of particles that do not exist and, in a definition read from a file, what
        its methods would have refused."""
        targets, scales = self.offset_targets.rows, self.offset_scales.rows
        names = [name for name, _ in self.global_parameters]
        defaults = np.array([default for _, default in self.global_parameters])
        if len(targets) != len(scales):
            raise ValueError(
                f"the FMMForce has {len(targets)} parameter offsets "
                f"and {len(scales)} scales of them"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"the FMMForce has a global parameter twice: {', '.join(names)}")
        for what, column, most in (
            ("global parameter", 0, len(names)),
            ("particle", 1, len(self.charges)),
        ):
            bad = np.flatnonzero((targets[:, column] < 0) | (targets[:, column] >= most))
            if len(bad):
                raise ValueError(
                    f"parameter offset {bad[0]} of the FMMForce names {what} "
                    f"{targets[bad[0], column]}, but it has {most} {what}s"
                )
        for what, values in (
            ("charge of particle", self.charges.rows[:, 0]),
            ("scale of parameter offset", scales[:, 0]),
            ("default value of global parameter", defaults),
        ):
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise ValueError(
                    f"the {what} {bad[0]} of the FMMForce must be finite, got {values[bad[0]]}"
                )

    # editing

    def add_particle(self, charge) -> int:
        index = self.charges.append(_charge(charge, len(self.charges)))
        self._parameters = None
        self._restructure()
        return index

    def fill(self, charges: np.ndarray, exclusions: np.ndarray) -> None:
        """Set charges, shape (n,), e, and exclusions, shape (m, 2), of an empty definition."""
        if len(charges):  # OpenMM allows a System without particles, but no Context of it
            charges = check_charges(charges)
        check_exclusions(exclusions, len(charges))
        self.charges, self.exclusions = (
            Table(*TABLES["charges"], charges),
            Table(*TABLES["exclusions"], exclusions),
        )
        self._excluded, self._parameters = None, None
        self._restructure()

    def take_over(self, other: "Definition") -> None:
        """Take charges, exclusions and parameter offsets of another definition."""
        for name in TABLES:
            setattr(self, name, getattr(other, name))
        self.global_parameters = other.global_parameters
        self.exclusions_periodic = other.exclusions_periodic
        self._excluded, self._parameters = None, None
        self._restructure()

    def set_charge(self, index: int, charge) -> None:
        self.charges[index] = _charge(charge, index)
        self._parameters = None

    def set_charges(self, charges) -> None:
        charges = check_charges(charges)
        if len(charges) != len(self.charges):
            raise ValueError(
                f"`charges` must have shape ({len(self.charges)},), one for each particle, "
                f"got {charges.shape}"
            )
        self.charges = Table(*TABLES["charges"], charges)
        self._parameters = None

    def add_exclusion(self, particle1: int, particle2: int) -> int:
        pair = (min(particle1, particle2), max(particle1, particle2))
        if pair[0] < 0 or pair[1] > LAST:
            raise ValueError(
                f"an exclusion must name particles from 0 to {LAST}, got ({particle1}, {particle2})"
            )
        if pair[0] == pair[1]:
            raise ValueError(
                f"an exclusion must name two particles, got ({particle1}, {particle2})"
            )
        if self._excluded is None:
            self._excluded = pair_set(self.exclusions.rows)
        if pair in self._excluded:
            raise ValueError(
                f"there is already an exclusion of particles {particle1} and {particle2}"
            )
        index = self.exclusions.append((particle1, particle2))
        self._excluded.add(pair)
        self._restructure()
        return index

    def set_exclusions_periodic(self, flag) -> None:
        periodic = check_flag(flag, "periodic")
        if periodic != self.exclusions_periodic:
            self.exclusions_periodic = periodic
            self._restructure()

    def set_boundary(self, boundary: Boundary) -> None:
        self.options.check_boundary(boundary)
        self.options.term(boundary)
        if boundary != self.boundary:
            self.boundary = boundary
            self._restructure()

    def add_global_parameter(self, name: str, default) -> int:
        if not isinstance(name, str) or not name:
            raise TypeError(f"`name` of a global parameter must be a string, got {name!r}")
        if any(name == known for known, _ in self.global_parameters):
            raise ValueError(f"there is already a global parameter {name!r}")
        self.global_parameters.append((name, _number(default, f"default value of {name!r}")))
        self._parameters = None
        return len(self.global_parameters) - 1

    def add_offset(self, name: str, particle: int, scale) -> int:
        target, scale = self._offset_target(name, particle), _number(scale, "scale", particle)
        index = self.offset_targets.append(target)
        self.offset_scales.append(scale)
        self._parameters = None
        return index

    def set_offset(self, index: int, name: str, particle: int, scale) -> None:
        target, scale = self._offset_target(name, particle), _number(scale, "scale", particle)
        self.offset_targets[index], self.offset_scales[index] = target, scale
        self._parameters = None

    def _restructure(self) -> None:
        self._structure = None
        self.structure_version += 1

    def _offset_target(self, name: str, particle: int) -> tuple[int, int]:
        names = [known for known, _ in self.global_parameters]
        if name not in names:
            raise ValueError(
                f"there is no global parameter {name!r}: add it with addGlobalParameter()"
            )
        if not 0 <= particle <= LAST:
            raise ValueError(
                f"`particle` of a parameter offset must lie between 0 and {LAST}, got {particle}"
            )
        return names.index(name), particle

    # copying

    def pack(self) -> str:
        """The definition as JSON text, compact enough for XML; tables are packed by
        :meth:`Table.pack`."""
        content = {
            "format": FORMAT,
            "options": asdict(self.options),
            "exclusions_periodic": self.exclusions_periodic,
            "boundary": self.boundary.name,
            "global_parameters": self.global_parameters,
            **{name: getattr(self, name).pack() for name in TABLES},
            "original": self.original,
        }
        return json.dumps(content, default=np.generic.item)

    @classmethod
    def unpack(cls, packed: str | dict) -> "Definition":
        """The inverse of :meth:`pack`, also for earlier formats.

        Raises:
            ValueError: the text is damaged, or written by a newer version of fmm_openmm.
        """
        content = content_of(packed)
        with naming_damage():
            definition = cls(Options(**content["options"]))
            for name, kind in TABLES.items():
                setattr(definition, name, Table.unpack(*kind, content[name]))
            definition.exclusions_periodic = _flag(content["exclusions_periodic"])
            definition.boundary = Boundary.from_name(content["boundary"])
            definition.global_parameters = [
                (str(name), float(default)) for name, default in content["global_parameters"]
            ]
            definition.original = content["original"]
            definition._excluded = None
        return definition


def _flag(value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"a flag must be true or false, got {value!r}")
    return value


def size_of(content: dict, name: str) -> tuple[int, float]:
    """Number of rows of a table in the result of :func:`content_of`, and the sum of its elements.
    Blocks are expanded one at a time.

    Raises:
        ValueError: the table is damaged.
    """
    with naming_damage():
        sizes = [(len(rows), float(rows.sum())) for rows in unpacked(*TABLES[name], content[name])]
    return sum(rows for rows, _ in sizes), sum(total for _, total in sizes)


_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    zlib.error,
)


@contextmanager
def naming_damage():
    """Context manager that converts exceptions on reading a damaged FMMForce to a ValueError."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, ValueError) and str(error).startswith("this FMMForce"):
            raise
        raise ValueError(f"this FMMForce is damaged: {type(error).__name__}: {error}") from error


def content_of(packed: str | dict) -> dict:
    """Content of a packed definition by name: ``format``, ``options``, ...

    Raises:
        ValueError: the text is damaged, or written by a newer version of fmm_openmm.
    """
    with naming_damage():
        content = json.loads(packed) if isinstance(packed, str) else _texts(packed)
        if content.get("format") not in range(1, FORMAT + 1):
            raise ValueError(
                f"this FMMForce was written in format {content.get('format')!r} by another version "
                f"of fmm_openmm; this version reads formats up to {FORMAT}"
            )
        content.setdefault("boundary", Boundary().name)  # the only one in format 1
        unknown = content["options"].keys() - {each.name for each in fields(Options)}
        if unknown:
            raise ValueError(
                "this FMMForce was written by a newer version of fmm_openmm: "
                f"unknown option {min(unknown)!r}"
            )
    return content


def _texts(packed):
    """Format 1, a dictionary with bytes, converted to format 2."""
    if isinstance(packed, bytes):
        return b64encode(packed).decode()
    if isinstance(packed, dict):
        return {name: _texts(value) for name, value in packed.items()}
    return [_texts(value) for value in packed] if isinstance(packed, list | tuple) else packed


def _charge(value, particle: int) -> float:
    """The charge of a particle as a finite float, e."""
    return _number(strip_units(value, "elementary_charge", "charge"), "charge", particle)


def _number(value, name: str, particle: int | None = None) -> float:
    """``value`` as a finite float in OpenMM units; the error names the particle."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        number = float(strip_units(value))
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, got {value!r:.80}") from None
    if not np.isfinite(number):
        where = "" if particle is None else f" for particle {particle}"
        raise ValueError(f"`{name}` must be finite, got {number}{where}")
    return number
