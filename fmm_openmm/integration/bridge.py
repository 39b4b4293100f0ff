"""The host bridge: the callable inside the ``openmm.PythonForce``, which every platform evaluates
through host memory.

OpenMM pickles the callable when the force is built, and clones it through that pickle (XML,
``copy.deepcopy``, ``CustomCVForce``, ``ATMForce``). Every unpickled callable gets its own identity,
and OpenMM pickles it anew, so the pickle inside a C++ force always names the callable that this
force calls: :func:`fmm_openmm.integration.identity.bridge_of` finds it again.
"""

import sys
import threading
import uuid
import weakref

import numpy as np

from fmm_openmm.errors import UnsupportedError, openmm_callback
from fmm_openmm.integration.definition import Definition, Parameters, Structure
from fmm_openmm.integration.guard import signals
from fmm_openmm.integration.identity import IDENTITY, LOADER, SOURCE, live
from fmm_openmm.integration.native.callbacks import prepare, sessions_of
from fmm_openmm.integration.snapshots import REVISION, Snapshots
from fmm_openmm.planning.request import FMMParameters
from fmm_openmm.results import CoulombResult
from fmm_openmm.solver import CoulombSolver


class HostBridge:
    """Computes energy and forces of a ``State`` for a PythonForce.

    Contexts that share a force share its callable, and nothing tells it which of them calls. So it
    serves the charges of the definition, or, where the Context was updated, those of the snapshot
    that the Context's parameter ``fmm_revision`` names.

    The structure (particle count and exclusions) is frozen at the first evaluation: Contexts may
    exist from then on.

    Args:
        definition: what to compute, or its packed form.

    Attributes:
        handles: the :class:`FMMForce` objects that edit the definition.
        is_unpickled: whether OpenMM unpickled it, and so never frees it.
    """

    def __init__(self, definition: Definition | str | dict):
        self.uid = IDENTITY + uuid.uuid4().hex
        self.snapshots = Snapshots()
        self.handles = weakref.WeakSet()
        self.is_unpickled = False
        # Contexts in several threads share the solver and the charges it holds
        self._lock = threading.Lock()
        self._definition = definition
        self._structure: Structure | None = None
        self._structure_version = 0
        self._parameters: Parameters | None = None
        self._solver: CoulombSolver | None = None
        self._loaded = None
        live[self.uid] = self

    @property
    def definition(self) -> Definition:
        """What the force is defined by; unpacked on first use.

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
        """``bridge(state)``: energy in kJ/mol and forces (n, 3) in kJ/mol/nm, float64.

        OpenMM takes the text of an exception and never frees the exception itself. Raised by Python
        code it would carry a traceback, and with it every caller's variables, the Context among
        them. So the call is the ``send`` of a generator: a result is yielded, and the text of an
        error is *returned*, which makes ``send`` raise a ``StopIteration`` of that text without any
        traceback.
        """
        call = self._compute()
        next(call)
        return call.send

    def _compute(self):
        state = yield
        try:
            # without images OpenMM gives no box
            boxless = self.fix_structure().boundary.is_open
            if self.definition.options.native_only:
                self._require_session()
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

        Beside such a one OpenMM's minimiser makes a Context of the CPU platform, where forces are
        too large for a GPU.
        """
        if not sessions_of(self):
            self.definition.options.check_available()
            raise UnsupportedError(
                f"`{self.definition.options.native_only}` needs a Context on the CUDA platform"
            )

    def evaluate(self, positions, box_vectors, values) -> CoulombResult:
        """Energy, forces, potentials and fields.

        Args:
            positions: shape (n, 3), nm.
            box_vectors: shape (3, 3), nm; of no effect in empty space.
            values: the Context's global parameters, by name.
        """
        with self._lock:
            charges = self.parameters_in(values).charges(values)
            if len(positions) != len(charges):
                particles = len(self.definition.charges)
                if len(positions) == particles:
                    raise ValueError(
                        "the FMMForce was given other particles after a Context had used it: make "
                        "a Context of copy.deepcopy(system) for them"
                    )
                raise ValueError(
                    f"the FMMForce has {particles} particles, but the System has {len(positions)}: "
                    "add one particle to the force for each of the System before a Context is made"
                )
            cell = self._structure.cell(box_vectors)
            return self._loaded_solver(charges, cell, positions).compute(positions, cell)

    def inputs(self, values) -> tuple[np.ndarray, Structure]:
        """Charges, shape (n,), e, and structure of the Context that has these global parameters."""
        with self._lock:
            return self.parameters_in(values).charges(values), self._structure

    def in_use(self, positions, box_vectors, values) -> tuple[FMMParameters, str]:
        """The solver's parameters and backend in a Context with these positions, box vectors and
        global parameters."""
        with self._lock:
            charges = self.parameters_in(values).charges(values)
            cell = self._structure.cell(box_vectors)
            solver = self._loaded_solver(charges, cell, positions)
            return solver.parameters_for(cell), solver.backend

    def parameters_in(self, values) -> Parameters:
        """Charges and offsets of the Context that has these global parameters."""
        structure = self.fix_structure()
        snapshot = self.snapshots.get(values.get(REVISION, 0.0))
        if snapshot is not None:
            return snapshot
        if self._parameters is None or len(self.definition.charges) == structure.particles:
            self._parameters = self.definition.parameters
        return self._parameters

    def fix_structure(self) -> Structure:
        """What Contexts use: the definition's structure when this was first called."""
        if self._structure is None:
            self._structure, self._structure_version = (
                self.definition.structure,
                self.definition.structure_version,
            )
        return self._structure

    @property
    def in_contexts(self) -> bool:
        """Whether Contexts may exist that use the force."""
        return self._structure is not None

    @property
    def is_current(self) -> bool:
        """Whether the definition still has the structure that Contexts use."""
        return (
            self._structure is None or self._structure_version == self.definition.structure_version
        )

    def release(self) -> None:
        """Shrink to the packed definition; the next evaluation unpacks it."""
        with self._lock:
            self._solver = self._loaded = self._structure = self._parameters = None
            if isinstance(self._definition, Definition):
                self._definition = self._definition.pack()

    def _loaded_solver(self, charges, cell, positions) -> CoulombSolver:
        if self._solver is None:
            self._solver = self._structure.solver(self.definition.options, charges, cell, positions)
            self._loaded = charges
        if self._loaded is not charges:
            self._solver.set_charges(charges)
            self._loaded = charges
        return self._solver


signals.install(live)


def revive(uid: str, packed: str | dict) -> HostBridge:
    """The bridge to a pickle, with its definition still packed: so whatever is wrong with that
    shows when it is used.

    Args:
        uid: identity of the bridge that was pickled; the new one gets its own.
        packed: its packed definition.
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
"""Reference count, as ``_references`` sees it, of what one owner holds.

OpenMM 8.6 never frees a callable it has unpickled. One that has no other owner left belongs to a
force that is gone. Any other callable is freed with its force, which may be its only owner.
"""
