"""The C++ object of an ``FMMForce``: created on first use, discarded or updated after a change."""

import pickle
from typing import TYPE_CHECKING

import openmm

from fmm_openmm.errors import warn
from fmm_openmm.integration.bridge import HostBridge
from fmm_openmm.integration.definition import Definition
from fmm_openmm.integration.native import callbacks
from fmm_openmm.integration.pickled import replace_pickle
from fmm_openmm.integration.snapshots import REVISION

if TYPE_CHECKING:
    from typing_extensions import Self

    class _PythonForce:
        """What type checkers know of ``openmm.PythonForce``, of which OpenMM tells them nothing."""

        def getForceGroup(self) -> int: ...
        def setForceGroup(self, group: int) -> None: ...
        def getName(self) -> str: ...
        def setName(self, name: str) -> None: ...
        def usesPeriodicBoundaryConditions(self) -> bool: ...
        def setUsesPeriodicBoundaryConditions(self, periodic: bool) -> None: ...
else:
    _PythonForce = openmm.PythonForce


class ForceHandle(_PythonForce):
    """A PythonForce whose callable is a bridge, and whose definition Python edits.

    Several handles may share one C++ object, and with it the bridge and its definition.
    """

    def _start(self, bridge: HostBridge, name: str = "FMMForce", group: int = 0) -> None:
        self._bridge, self._is_view = bridge, False
        self._declares_parameters = True  # to its Contexts; False: another force does
        self._name, self._group = name, group
        bridge.handles.add(self)

    @classmethod
    def _view(cls, force: openmm.PythonForce, bridge: HostBridge) -> "Self":
        made = cls.__new__(cls)
        made._start(bridge)
        made._is_view, made.__dict__["this"] = True, force.this
        return made

    @property
    def this(self):
        """SWIG's handle of the C++ object, which is created on first use.

        A PythonForce is immutable. A change while Python still owns the object therefore discards
        it (:meth:`_edited`). OpenMM reads ``thisown`` before a System or another force takes
        ownership.
        """
        handle = self.__dict__.get("this")
        if handle is None:
            callbacks.prepare(self._definition.options)
            defaults = dict(self._definition.global_parameters) if self._declares_parameters else {}
            built = openmm.PythonForce(self._bridge, {REVISION: 0.0, **defaults})
            built.setUsesPeriodicBoundaryConditions(not self._definition.boundary.is_open)
            built.setName(self._name)
            built.setForceGroup(self._group)
            handle = self.__dict__["this"] = built.this
        return handle

    @property
    def thisown(self):
        """Whether Python owns the C++ object."""
        return self.this.own()

    @thisown.setter
    def thisown(self, flag):
        self.this.own(flag)

    @property
    def _definition(self) -> Definition:
        return self._bridge.definition

    @property
    def _is_taken(self) -> bool:
        """Whether a System or another force owns the C++ object or may come to own it."""
        handle = self.__dict__.get("this")
        return handle is not None and (self._is_view or not handle.own())

    def _removed(self, system: openmm.System, index: int) -> None:
        """Remove the force from the System that owns it. All handles then belong to Python
        again."""
        name, group = self.getName(), self.getForceGroup()
        handles, bridge = list(self._bridge.handles), HostBridge(self._definition)
        system.removeForce(index)
        self._definition.original = None
        for handle in handles:
            handle.__dict__.pop("this", None)
            handle._start(bridge, name, group)

    def _edited(self) -> None:
        """Apply a change of the definition to the C++ object."""
        if "this" not in self.__dict__:
            return
        callbacks.changed()
        if self._is_taken:
            if not replace_pickle(self, pickle.dumps(self._bridge)):
                warn(
                    "this build of OpenMM does not let an FMMForce change once a System owns it: "
                    "the change acts in Contexts, but XML and copies of the System will lack it"
                )
        else:
            self._name, self._group = self.getName(), self.getForceGroup()
            del self.__dict__["this"]

    def _restructured(self) -> None:
        self._edited()
        if not self._bridge.is_current:
            warn(
                "an FMMForce was given other particles or exclusions after a Context had used it: "
                "Contexts of this System keep the old ones; make a Context of "
                "copy.deepcopy(system) for the new ones"
            )
