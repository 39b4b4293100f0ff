"""The options of an ``FMMForce``, which say how it computes."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from fmm_openmm.backends import BACKENDS, backend_class
from fmm_openmm.boundary import Boundary
from fmm_openmm.checks import check_choice, check_numbers
from fmm_openmm.dipole_term import TIN_FOIL, DipoleTerm
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.native import plugin
from fmm_openmm.neutralization import Cylinders, Neutralization, Sheets
from fmm_openmm.options import option
from fmm_openmm.planning.request import Request, SolverKeywords, SolverOptions

BRIDGES = ("auto", "host", "native")
"""Ways into OpenMM."""

LENNARD_JONES = ("auto", "sites", "openmm")
"""Implementations of the Lennard-Jones pairs."""


class ForceKeywords(SolverKeywords, total=False):
    """Keywords for :class:`Options` in the form that type checkers read, without the tolerance."""

    precision: str
    backend: str
    bridge: str
    lennard_jones: str
    devices: Sequence[int | str] | str | None
    slab_correction: bool
    surface_dielectric: float
    neutralization: Sequence[float] | Sequence[Sequence[float]] | None


def coordinates(text: str) -> float | list[float]:
    """Parse a number, or several with commas between them."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number or numbers with commas between them, got {text!r}"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def check_devices(value: Sequence[int | str] | str) -> None:
    """Refuse what is neither "auto" nor several different indices or UUIDs of devices.

    Raises:
        ValueError, TypeError: the message names the value.
    """
    if value == "auto":
        return
    if isinstance(value, str):
        raise ValueError(f"`devices` must be 'auto' or a list of devices, got {value!r}")
    names = [str(each) for each in value]
    if any(isinstance(each, bool) or not isinstance(each, int | str) for each in value):
        raise TypeError(f"`devices` must hold indices or UUIDs, got {value!r}")
    if not names or len({*names}) < len(names):
        raise ValueError(f"`devices` must name each device once, got {value!r}")


def device_names(text: str) -> str | list[str]:
    """Parse "auto", or indices or UUIDs of devices with commas between them."""
    return text if text == "auto" else text.split(",")


@dataclass(frozen=True)
class Options(SolverOptions):
    """All arguments of an :class:`FMMForce` except charges and exclusions.

    Each field is an option of ``FMMForce``, ``use_fmm`` and the command line. Those that are not
    :data:`ONLY_IN_CONTEXT` are options of ``CoulombSolver`` and ``validate`` as well. Values are
    checked on creation.
    """

    backend: str = option("auto", "implementation of the FMM", choices=BACKENDS)
    bridge: str = option(
        "auto",
        'exchange of data with OpenMM: "auto", "host" or "native"',
        '. "native" computes inside OpenMM\'s CUDA platform, "host" copies through the host and '
        'works on every platform; "auto" is native where possible',
        check=lambda value: check_choice(value, BRIDGES, "bridge"),
        only_in_context=True,
        metavar="NAME",
    )
    lennard_jones: str = option(
        "auto",
        "implementation of the System's Lennard-Jones pairs on the native bridge",
        '. "sites": the plugin, among the particles with a Lennard-Jones interaction; an error if '
        'the plugin does not support the System. "openmm": OpenMM, among all particles. "auto": '
        "the plugin if it supports the System and is faster",
        choices=LENNARD_JONES,
        only_in_context=True,
    )
    devices: Sequence[int | str] | str | None = option(
        None,
        "GPUs that share the work on the native bridge, as indices or UUIDs",
        ', the Context\'s own among them; the default is that one alone. "auto": also a second one '
        "where that is faster",
        type=device_names,
        check=check_devices,
        only_in_context=True,
        metavar="N,N",
        help='GPUs that share the work, for example "0,1", or "auto"',
    )
    slab_correction: bool = option(
        False,
        "correction of a slab with images along three box vectors, after Yeh and Berkowitz",
        ". The box must hold vacuum along the normal of a and b; ``boundary='slab'`` needs neither",
        kind=bool,
    )
    surface_dielectric: float = option(
        TIN_FOIL,
        "dielectric constant around an infinite crystal",
        ", from 1, vacuum, to infinity, tin foil. For this and for ``slab_correction`` the dipole "
        "moment is that of positions that are not wrapped; both need the Reference or CPU platform "
        "or, on the CUDA platform, the native bridge",
        kind=float,
        limits=(1.0, TIN_FOIL),
    )
    neutralization: Sequence[float] | Sequence[Sequence[float]] | None = option(
        None,
        "what carries the opposite of the net charge of a slab or wire, nm",
        ", as in :class:`fmm_openmm.CoulombSolver`. The particles are taken at the image nearest "
        "to the middle of it",
        type=coordinates,
        action="append",
        metavar="Z",
        help="height along z of a uniform sheet that neutralises a slab, or X,Y,Z of a point on a "
        "line next to a wire, or X,Y,Z,R of a cylinder of radius R, nm; repeated for more of them; "
        "--neutralization=-1,0,0 if the first number is negative",
    )

    def __post_init__(self):
        super().__post_init__()
        self.dipole_term(Boundary())  # refuses both together
        if self.neutralization is not None:
            given = check_numbers(self.neutralization, "nanometer", "neutralization")
            object.__setattr__(self, "neutralization", given.tolist())
        if self.named_devices:
            names = [each if isinstance(each, str) else int(each) for each in self.devices or ()]
            object.__setattr__(self, "devices", names)
            if self.bridge == "host" or not self.on_gpu:
                raise ValueError(
                    f"`devices={names!r}` needs the native bridge: `bridge` must be 'auto' or "
                    f"'native' and `backend` 'auto' or 'cuda', got {self.bridge!r} and "
                    f"{self.backend!r}"
                )
        if self.grid is not None:
            object.__setattr__(self, "grid", np.asarray(self.grid).tolist())
        if self.bridge == "native" and not self.on_gpu:
            raise ValueError(
                f"`backend` must be 'auto' or 'cuda' with `bridge='native'`, got {self.backend!r}"
            )
        if self.lennard_jones == "sites" and (self.bridge == "host" or not self.on_gpu):
            raise ValueError(
                "`lennard_jones='sites'` needs the native bridge: `bridge` must be 'auto' or "
                f"'native' and `backend` 'auto' or 'cuda', got {self.bridge!r} and {self.backend!r}"
            )

    def check_available(self) -> None:
        """Refuse options that this computer does not support. Only options that a user chooses are
        checked, not those that are read from a file.

        Raises:
            UnsupportedError: the backend or the native bridge is not available.
        """
        if self.backend == "cuda":
            backend_class("cuda")
        if self.native_only:
            try:
                plugin.load()
            except UnsupportedError as reason:
                raise UnsupportedError(f"`{self.native_only}` is not available: {reason}") from None

    @property
    def native_only(self) -> str | None:
        """The option that asks for the native bridge and nothing else, as it is written; None if
        there is none."""
        if self.bridge == "native":
            return "bridge='native'"
        if self.named_devices:
            return f"devices={self.devices!r}"
        return "lennard_jones='sites'" if self.lennard_jones == "sites" else None

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU may compute."""
        return self.backend in ("auto", "cuda")

    @property
    def named_devices(self) -> bool:
        """Whether the user names the devices."""
        return self.devices is not None and self.devices != "auto"

    def devices_for(self, more_are_faster: bool) -> list[str]:
        """What the plugin is told of the devices that share the work: names, "auto", or nothing
        if one computes.

        Args:
            more_are_faster: whether a second device is there and saves time.
        """
        if self.devices == "auto":
            return ["auto"] if more_are_faster else []
        return [str(each) for each in self.devices or ()]

    def dipole_term(self, boundary: Boundary) -> DipoleTerm | None:
        """The dipole term with a boundary; None if it is zero.

        Raises:
            ValueError: the boundary has none.
        """
        return DipoleTerm.from_options(self.slab_correction, self.surface_dielectric, boundary)

    def neutralizer(self, boundary: Boundary) -> Sheets | Cylinders | None:
        """What neutralises a slab or wire; None if nothing does.

        Raises:
            ValueError, UnsupportedError: the option is invalid, or does not apply to the boundary.
        """
        return Neutralization.from_option(self.neutralization, boundary)

    def term(self, boundary: Boundary) -> DipoleTerm | Sheets | Cylinders | None:
        """What is added to the sum over the images with a boundary: :meth:`dipole_term` or
        :meth:`neutralizer`; no boundary has both."""
        return self.dipole_term(boundary) or self.neutralizer(boundary)

    @property
    def of_term(self) -> dict:
        """The options of :meth:`term`, which change the energy, by name."""
        return {
            "slab_correction": self.slab_correction,
            "surface_dielectric": self.surface_dielectric,
            "neutralization": self.neutralization,
        }

    def replaced_by(self, given: dict) -> "Options":
        """The options that are given, by name, and defaults for the others but those of the term,
        which is kept; these options if none is given."""
        return Options(**{**self.of_term, **given}) if given else self

    def request(self, precision: str | None = None) -> Request:
        """The request from which parameters are chosen, in the requested precision or another."""
        shared = {row.name: getattr(self, row.name) for row in fields(SolverOptions)}
        return Request(**shared | {"precision": precision or self.precision})

    def of_solver(self) -> dict:
        """Keyword arguments of a :class:`fmm_openmm.CoulombSolver`."""
        return {name: value for name, value in asdict(self).items() if name not in ONLY_IN_CONTEXT}


ONLY_IN_CONTEXT = tuple(row.name for row in fields(Options) if row.metadata["only_in_context"])
"""Options that a solver outside OpenMM lacks."""
