"""Signals wait while OpenMM evaluates forces.

OpenMM takes whatever a PythonForce raises for an error of that force. A signal whose handler runs
while the host bridge computes, and raises as that of Ctrl-C does, would end a step in its middle
(inside a barostat's trial move, say) with an ``OpenMMException`` that no longer tells of it. So
handlers wait until the method of OpenMM that was called returns, as they do where there is no
PythonForce, and act then: ``KeyboardInterrupt`` or ``SystemExit`` comes out of ``step``.

``openmm.app.Simulation`` takes ten steps a call. A minimisation is one call, and so is a long
``integrator.step``: Ctrl-C ends the host bridge's evaluation in the former, a second one in the
latter.
"""

import _signal  # ``signal`` without its enumerations, which would cost 25 microseconds a step
import functools
import signal
import threading
from collections import Counter

import openmm

from fmm_openmm.integration.guard.wrapping import wrap

SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
]
"""Those that handlers are written for; not all, as each takes its time in every call."""

METHODS = (
    "step",
    "stepTo",
    "getState",
    "getTotalEnergy",
    "getCollectiveVariableValues",
    "getPerturbationEnergy",
    "minimize",
    "reinitialize",
)
"""Methods of OpenMM's classes that evaluate forces; beside them a Context is made."""

_MARK = "_fmm_openmm_waiting"
"""Attribute of a method that :func:`install` put in place."""

_current: "_Waiting | None" = None


class _Waiting:
    """For a ``with`` block, in the main thread, in which the handlers of Python wait.

    It is the handler meanwhile. Should restoring be interrupted, it forwards what comes later.

    Args:
        patience: times that Ctrl-C comes before it ends an evaluation.
    """

    def __init__(self, patience: int):
        self.patience, self.came, self._active = patience, Counter(), False

    def __enter__(self):
        global _current
        handlers = ((number, _signal.getsignal(number)) for number in SIGNALS)
        self._usual = {number: handler for number, handler in handlers if callable(handler)}
        for number in self._usual:
            _signal.signal(number, self)
        self._active, self._outer, _current = True, _current, self

    def __call__(self, number, frame):
        if self._active:
            self.came[number] += 1
            if self.is_spent:
                raise KeyboardInterrupt
        else:
            signal.signal(number, self._usual[number])
            self._usual[number](number, frame)

    def __exit__(self, *_):
        global _current
        self._active, _current = False, self._outer
        for number, handler in self._usual.items():
            if _signal.getsignal(number) is self:
                _signal.signal(number, handler)
        _raise(list(self.came))

    @property
    def is_spent(self) -> bool:
        """Whether Ctrl-C came that often, and will surely raise KeyboardInterrupt."""
        return (
            self.came[signal.SIGINT] >= self.patience
            and self._usual[signal.SIGINT] is signal.default_int_handler
        )


def _raise(numbers: list) -> None:
    """Have the handlers of signals act, one after the other, whatever they raise; once each, as
    signals that wait do."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise(numbers[1:])


def is_waiting() -> bool:
    """Whether a signal waits for the method of OpenMM that the main thread has called."""
    return _current is not None and bool(_current.came)


def install(bridges) -> None:
    """Have signals wait in the methods of OpenMM from now on, while there are ``bridges``."""
    for kind in {value for value in vars(openmm.openmm).values() if isinstance(value, type)}:
        for name in METHODS:
            if name in vars(kind):
                patience = 1 if name == "minimize" else 2
                wrap(kind, name, functools.partial(_waiting, bridges, patience), _MARK)
    wrap(openmm.Context, "__init__", functools.partial(_waiting, bridges, 2), _MARK)


def _waiting(bridges, patience: int, method):
    def waiting(*args, **keywords):
        if not bridges or threading.current_thread() is not threading.main_thread():
            return method(*args, **keywords)
        with _Waiting(patience):
            return method(*args, **keywords)

    return waiting
