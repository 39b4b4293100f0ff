"""The host bridge: the callable of the ``openmm.PythonForce``, which every platform evaluates
through host memory.

OpenMM pickles the callable when the force is created, and copies the force by that pickle (XML,
``copy.deepcopy``, ``CustomCVForce``, ``ATMForce``). Every unpickled callable has a new identity and
is pickled again by OpenMM. The pickle in a C++ force therefore always identifies the callable of
that force, which :func:`fmm_openmm.integration.identity.bridge_of` finds.
"""

import sys
import threading
import uuid
import weakref

import numpy as np

from fmm_openmm.errors import UnsupportedError, openmm_callback, warn
from fmm_openmm.integration.definition import Definition, Parameters, Structure
from fmm_openmm.integration.guard import signals
from fmm_openmm.integration.identity import IDENTITY, LOADER, SOURCE, live
from fmm_openmm.integration.native.callbacks import prepare, sessions_of
from fmm_openmm.integration.snapshots import REVISION, Snapshots, revision_of
from fmm_openmm.planning.request import FMMParameters
from fmm_openmm.results import CoulombResult
from fmm_openmm.solver import CoulombSolver


class HostBridge:
    """Computes energy and forces of a ``State`` for a PythonForce.

    Contexts of one force share its callable, which does not know the calling Context. It uses the
    charges of the definition or, if the Context was updated, those of the snapshot that the
    Context's parameter ``fmm_revision`` identifies.

    The structure (number of particles and exclusions) is frozen at the first evaluation, since
    Contexts may exist from then on.

    Args:
        definition: definition of the force, or its packed form.

    Attributes:
        handles: the :class:`FMMForce` objects that edit the definition.
        is_unpickled: whether OpenMM has unpickled the bridge, in which case it never frees it.
        keeps_images: whether a Context has been checked to hand over positions that are not
            wrapped, without which OpenMM cannot call a force with a dipole term.
    """

    def __init__(self, definition: Definition | str | dict):
        self.uid = IDENTITY + uuid.uuid4().hex
        self.snapshots = Snapshots()
        self.handles: weakref.WeakSet = weakref.WeakSet()
        self.is_unpickled = self.keeps_images = False
        # Contexts in several threads share the solver and the charges it holds
        self._lock = threading.Lock()
        self._definition = definition
        self._structure: Structure | None = None
        self._structure_version = 0
        self._parameters: Parameters | None = None
        self._compared = 0.0  # the last revision without a snapshot
        self._undeclared = False  # whether a Context lacked a global parameter
        self._solver: CoulombSolver | None = None
        self._loaded = None
        live[self.uid] = self

    @property
    def definition(self) -> Definition:
        """Definition of the force, unpacked on first use.

        Raises:
            ValueError: the packed form was written by another version.
        """
        if not isinstance(self._definition, Definition):
            self._definition = Definition.unpack(self._definition)
        return self._definition

    def __reduce__(self):
        packed = (
            self._definition.pack()
            if isinstance(self._definition, Definition)
            else self._definition
        )
        return eval, (SOURCE, {"loader": LOADER, "uid": self.uid, "packed": packed})

    @property
    def __call__(self):
        """``bridge(state)``: energy in kJ/mol and forces, shape (n, 3), in kJ/mol/nm, float64.

        OpenMM reads the text of an exception and never frees the exception. An exception raised by
        Python code would hold a traceback, and with it the variables of all callers, the Context
        included. The call is therefore the ``send`` of a generator, which yields a result and
        *returns* the text of an error: ``send`` then raises a ``StopIteration`` with that text and
        without a traceback.
        """
        call = self._compute()
        next(call)
        return call.send

    def _compute(self):
        state = yield
        try:
            # OpenMM has no box without periodicity
            boxless = self.fix_structure().boundary.is_open
            if self.definition.options.native_only:
                self._require_session()
            self._check_images()
            with openmm_callback():
                result = self.evaluate(
                    state.getPositions(asNumpy=True)._value,
                    None if boxless else state.getPeriodicBoxVectors(asNumpy=True)._value,
                    dict(state.getParameters()),
                )
        except (ValueError, UnsupportedError) as error:
            return f"FMMForce: {error}"
        except (KeyboardInterrupt, SystemExit):
            return "FMMForce: interrupted"
        except Exception as error:
            return f"FMMForce: {type(error).__name__}: {error}"
        yield result.energy, result.forces

    def _require_session(self) -> None:
        """Raise an error unless the native bridge serves a Context of this force.

        In addition to such a Context OpenMM's minimiser creates one on the CPU platform if forces
        are too large for the GPU.
        """
        if not sessions_of(self):
            self.definition.options.check_available()
            raise UnsupportedError(
                f"`{self.definition.options.native_only}` needs a Context on the CUDA platform"
            )

    def evaluate(self, positions, box_vectors, values, **quantities) -> CoulombResult:
        """Energy, forces, potentials and fields.

        Args:
            positions: shape (n, 3), nm.
            box_vectors: shape (3, 3), nm; ignored in free space.
            values: global parameters of the Context, by name.
            quantities: keywords of :meth:`CoulombSolver.compute` that ask for more.
        """
        with self._lock:
            charges = self.parameters_in(values).charges(values)
            if len(positions) != len(charges):
                particles = len(self.definition.charges)
                if len(positions) == particles:
                    raise ValueError(
                        "the particles of the FMMForce were changed after a Context had used it: "
                        "create a Context of copy.deepcopy(system)"
                    )
                raise ValueError(
                    f"the FMMForce has {particles} particles, but the System has {len(positions)}: "
                    "add one particle to the force for each particle of the System before a "
                    "Context is created"
                )
            solver, positions, cell = self._loaded_solver(charges, positions, box_vectors)
            return solver.compute(positions, cell, **quantities)

    def _check_images(self) -> None:
        """Refuse a dipole term of positions that OpenMM may have wrapped."""
        term = self.definition.options.dipole_term(self.fix_structure().boundary)
        if term is not None and not self.keeps_images:
            raise UnsupportedError(term.unknown_images)

    def inputs(self, values) -> tuple[np.ndarray, Structure]:
        """Charges, shape (n,), e, and structure for a Context with the given global parameters."""
        with self._lock:
            return self.parameters_in(values).charges(values), self.fix_structure()

    def in_use(self, positions, box_vectors, values) -> tuple[FMMParameters, str]:
        """Parameters and backend of the solver in a Context with the given positions, box vectors
        and global parameters."""
        with self._lock:
            charges = self.parameters_in(values).charges(values)
            solver, _, cell = self._loaded_solver(charges, positions, box_vectors)
            return solver.parameters_for(cell), solver.backend

    def parameters_in(self, values) -> Parameters:
        """Charges and offsets for a Context with the given global parameters.

        Warns:
            UserWarning: a State names other charges, which this process does not have; or the
                Context lacks a global parameter.
        """
        found = self._parameters_of(values)
        lacking = next((name for name in found.names if name not in values), None)
        if lacking is not None and not self._undeclared:
            self._undeclared = True
            value = found.defaults[found.names.index(lacking)]
            warn(
                f"charges of an FMMForce depend on the global parameter {lacking!r}, which no "
                f"other force beside it declares: it keeps its value at the conversion, {value:g}. "
                "copy.copy(find_fmm(system)[0]) is a force that declares it"
            )
        return found

    def _parameters_of(self, values) -> Parameters:
        structure, revision = self.fix_structure(), values.get(REVISION, 0.0)
        snapshot = self.snapshots.get(revision)
        if snapshot is not None:
            return snapshot
        if self._parameters is None or len(self.definition.charges) == structure.particles:
            self._parameters = self.definition.parameters
        if revision not in (0.0, self._compared):
            self._compared = revision
            if revision_of([self._parameters]) != revision:
                warn(
                    "a State was loaded that was saved after updateParametersInContext() of other "
                    "charges than those of this FMMForce, or of several FMMForces; the charges of "
                    "this FMMForce are used: set those of the State, and call "
                    "updateParametersInContext()"
                )
        return self._parameters

    def fix_structure(self) -> Structure:
        """Return the structure that Contexts use, which is that of the definition at the first
        call."""
        if self._structure is None:
            self._structure, self._structure_version = (
                self.definition.structure,
                self.definition.structure_version,
            )
        return self._structure

    @property
    def in_contexts(self) -> bool:
        """Whether Contexts of the force may exist."""
        return self._structure is not None

    @property
    def is_current(self) -> bool:
        """Whether the structure of the definition is the one that Contexts use."""
        return (
            self._structure is None or self._structure_version == self.definition.structure_version
        )

    def release(self) -> None:
        """Release everything but the packed definition, which the next evaluation unpacks."""
        with self._lock:
            self._solver = self._loaded = self._structure = self._parameters = None
            if isinstance(self._definition, Definition):
                self._definition = self._definition.pack()

    def _loaded_solver(
        self, charges, positions, box_vectors
    ) -> tuple[CoulombSolver, np.ndarray, np.ndarray | None]:
        """The solver with the given charges, and the positions and the cell for it."""
        structure = self.fix_structure()
        neutralizer = self.definition.options.neutralizer(structure.boundary)
        positions = structure.unwrapped(positions, box_vectors, neutralizer)
        cell = structure.cell(box_vectors)
        if self._solver is None:
            self._solver = structure.solver(self.definition.options, charges, cell, positions)
        elif self._loaded is not charges:
            self._solver.set_charges(charges)
        self._loaded = charges
        return self._solver, positions, cell


signals.install(live)


def revive(uid: str, packed: str | dict) -> HostBridge:
    """The bridge of a pickle. Its definition remains packed, so that errors in it occur on use.

    Args:
        uid: identity of the pickled bridge; the new bridge has another one.
        packed: packed definition.
    """
    with openmm_callback():
        prepare()
    for key in list(live):
        if _references(live, key) <= _HELD_ONCE and live[key].is_unpickled:
            live[key].release()
    made = HostBridge(packed)
    made.is_unpickled = True
    return made


def _references(table, key) -> int:
    value = table.get(key)
    return sys.getrefcount(value)


_HELD_ONCE = _references({0: object()}, 0)
"""Reference count, as determined by ``_references``, of an object with a single owner.

OpenMM 8.6 never frees a callable that it has unpickled. If such a callable has no other owner, its
force no longer exists. Any other callable is freed with its force, which may be its only owner.
"""
