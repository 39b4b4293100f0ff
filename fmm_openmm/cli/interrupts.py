"""Ctrl-C during a simulation: it ends the simulation, whose results are told."""

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import openmm

from fmm_openmm.integration.guard import signals


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed, and when: "while ..." or "after ...", for people."""

    came: bool = False
    stage: str = "before the first step"


class StopMinimisation(openmm.MinimizationReporter):
    """Ends a minimisation after an interrupt, whose handler may wait for the end of it."""

    def __init__(self, interrupt: Interrupt):
        super().__init__()
        self.interrupt = interrupt

    def report(self, iteration, x, grad, args):
        return self.interrupt.came or signals.is_waiting()


@contextmanager
def first_interrupt():
    """Take note of the first Ctrl-C in a ``with`` block, in an :class:`Interrupt`, in place of a
    ``KeyboardInterrupt``; a second one acts as usual. In threads other than the main one nothing
    changes."""
    interrupt, usual = Interrupt(), signal.getsignal(signal.SIGINT)

    def take_note(*_):
        interrupt.came = True
        signal.signal(signal.SIGINT, usual)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        signal.signal(signal.SIGINT, take_note)
    try:
        yield interrupt
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, usual)
