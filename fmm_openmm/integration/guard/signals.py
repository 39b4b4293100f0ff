"""Deferral of signals while OpenMM evaluates forces.

OpenMM treats any exception of a PythonForce as an error of that force. A signal handler that runs
while the host bridge computes, and raises an exception as that of Ctrl-C does, would end a step
half-way, for example inside a trial move of a barostat, with an ``OpenMMException`` that hides the
signal. Handlers are therefore deferred until OpenMM's method returns, as they are without a
PythonForce; ``KeyboardInterrupt`` or ``SystemExit`` then comes out of ``step``.

``openmm.app.Simulation`` takes ten steps in a call. A minimisation is a single call: Ctrl-C ends
the evaluation of the host bridge at once. In a long ``integrator.step`` the second Ctrl-C does."""

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
"""Signals that are deferred: those that programs usually handle, since each costs time in every
call."""

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
"""Methods of OpenMM's classes that evaluate forces, in addition to the constructor of Context."""

_MARK = "_fmm_openmm_waiting"
"""Attribute of a wrapper that :func:`install` has put in place."""

_current: "_Waiting | None" = None


class _Waiting:
    """Context manager for the main thread that defers Python's signal handlers.

    It is the handler in the meantime. If restoring the handlers is interrupted, it forwards later
    signals to them.

    Args:
        patience: number of Ctrl-C that ends an evaluation.
    """

    def __init__(self, patience: int):
        self.patience, self._active = patience, False
        self.came: Counter[int] = Counter()

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
        """Whether Ctrl-C came ``patience`` times and its handler raises KeyboardInterrupt."""
        return (
            self.came[signal.SIGINT] >= self.patience
            and self._usual[signal.SIGINT] is signal.default_int_handler
        )


def _raise(numbers: list) -> None:
    """Raise each signal once, even if handlers of others raise exceptions."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise(numbers[1:])


def is_waiting() -> bool:
    """Whether a signal is deferred at present."""
    return _current is not None and bool(_current.came)


def install(bridges) -> None:
    """Defer signals in OpenMM's methods from now on, as long as there are ``bridges``."""
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
