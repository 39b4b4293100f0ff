"""Handling of Ctrl-C: it ends a simulation, and the results so far are reported."""

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import openmm

from fmm_openmm.integration.guard import signals


@dataclass
class Interrupt:
    """State of an interrupt: whether Ctrl-C was pressed, and the stage at that time, as text that
    begins with "while" or "after"."""

    came: bool = False
    stage: str = "before the first step"


class StopMinimisation(openmm.MinimizationReporter):
    """Ends a minimisation after an interrupt, whose handler may wait for its end."""

    def __init__(self, interrupt: Interrupt):
        super().__init__()
        self.interrupt = interrupt

    def report(self, iteration, x, grad, args):
        return self.interrupt.came or signals.is_waiting()


@contextmanager
def first_interrupt():
    """Record the first Ctrl-C within a ``with`` block in an :class:`Interrupt` instead of raising
    ``KeyboardInterrupt``; a second one raises it. Threads other than the main one do not handle
    Ctrl-C."""
    interrupt, usual = Interrupt(), signal.getsignal(signal.SIGINT)

    def record(*_):
        interrupt.came = True
        signal.signal(signal.SIGINT, usual)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        signal.signal(signal.SIGINT, record)
    try:
        yield interrupt
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, usual)
