"""The functions of the native bridge that the plugin calls, and their registration.

On the CUDA platform the plugin (``fmm_openmm/native``) creates the kernel of every PythonForce. It
calls :func:`_open` to ask whether it is to compute the force. All other forces, and forces after a
failure, are computed by OpenMM's own kernel, which calls the callable of the force. A force that
the plugin computes has a :class:`fmm_openmm.integration.native.session.Session` in each Context.
"""

import atexit
import ctypes
import functools
import logging

import numpy as np
import openmm

from fmm_openmm.backends.cuda.abi import Callbacks, Delivery, Inbox
from fmm_openmm.errors import UnsupportedError, openmm_callback, warn
from fmm_openmm.integration.identity import Bridge, bridge_in
from fmm_openmm.integration.native import pair_choice, plugin
from fmm_openmm.integration.native.session import Session
from fmm_openmm.integration.options import Options
from fmm_openmm.integration.snapshots import REVISION

_log = logging.getLogger("fmm_openmm")

HOST_STEP, PME_STEP = 2.5, 0.16
"""Time of a step of 21,384 atoms of water on one H200 with the host bridge and with PME, ms."""

_sessions: dict[int, Session] = {}
"""Sessions by the address of the plugin's kernel."""


@functools.cache
def activate() -> str | None:
    """Load and register the plugin. Return the reason if that is impossible, else None."""
    try:
        library = plugin.load()
    except UnsupportedError as reason:
        return str(reason)
    library.fmm_deliver.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64]
    library.fmm_potentials.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.fmm_register(ctypes.byref(_callbacks))
    atexit.register(library.fmm_leave)
    return None


def prepare(options: Options | None = None) -> None:
    """Activate the plugin before a force is created. Warn once in a process if that is impossible
    although there is a CUDA device.

    Args:
        options: options of the force, which may not request the plugin; None if they are unknown.
    """
    reason = activate()
    wanted = options is None or (options.bridge == "auto" and options.on_gpu)
    if (
        wanted
        and reason not in (None, plugin.NO_PLATFORM)
        and openmm.Platform.getPlatformByName("CUDA").getDevices()
    ):
        _warn(reason)


@functools.cache
def _warn(reason: str) -> None:
    warn(
        f"on the CUDA platform this FMMForce will be slower than PME: {HOST_STEP} ms a step in "
        f"place of {PME_STEP} at 21,384 atoms, "
        f"since positions and forces pass through the host; {reason}"
    )


def changed() -> None:
    """Tell the plugin that the definition of a force has changed."""
    if activate() is None:
        plugin.load().fmm_changed()


def status(bridge: Bridge, context) -> tuple[Session | None, str]:
    """The session of a bridge in a Context, or None if there is none, and the reason."""
    options, name = bridge.definition.options, context.getPlatform().getName()
    for session in sessions_of(bridge, int(context.this)) if name == "CUDA" else ():
        return (
            (None, session.reason)
            if session.reason
            else (session, "the Context is on the CUDA platform")
        )
    if options.bridge == "host":
        return None, "it was asked for"
    if not options.on_gpu:
        return None, f"the backend is {options.backend!r}"
    return (
        None,
        f"the Context is on the {name} platform"
        if name != "CUDA"
        else activate() or "the plugin was not loaded",
    )


def sessions_of(bridge: Bridge, context: int | None = None) -> list[Session]:
    """The sessions of a bridge in the Context at an address, or in all Contexts."""
    own = [session for session in list(_sessions.values()) if session.bridge is bridge]
    return own if context is None else [session for session in own if session.context == context]


# The plugin calls these functions from any of OpenMM's threads. They must not raise exceptions
# other than an interrupt, which may occur before the first line; DONE is then missing, and the
# plugin raises an error.


def _answering(function):
    """A callback that delivers DONE at the end; its last argument is the inbox."""

    @functools.wraps(function)
    def answer(*args):
        with openmm_callback():
            function(*args)
        _deliver(args[-1], Delivery.DONE, b"")

    return answer


@_answering
def _open(kernel, context, pickled, size, place, inbox):
    try:
        bridge = bridge_in(ctypes.string_at(pickled, size)) if size else None
        if bridge is None:
            return
        # left by a Context at the same address whose creation failed
        for left in sessions_of(bridge, context):
            del _sessions[left.kernel]
        place, structure = place.contents, bridge.fix_structure()
        if (
            structure.particles == place.particles
            and len(structure.exclusions)
            and not structure.periodic
        ):
            _deliver(inbox, Delivery.EXCLUSIONS, structure.exclusions.astype(np.int32).tobytes())
        options = bridge.definition.options
        if options.bridge != "host" and options.on_gpu:
            _sessions[kernel] = Session(bridge, kernel, context, place)
            if place.devices > 1:
                _log.warning(
                    "the Context is on %d devices, of which the FMM and Lennard-Jones among sites "
                    "use the first: one device is as fast, and faster for small systems",
                    place.devices,
                )
            for kind, data in _sessions[kernel].further_devices().items():
                _deliver(inbox, kind, data)
            names = (REVISION, *bridge.definition.parameters.names)
            _deliver(inbox, Delivery.CLAIM, "\0".join(names).encode())
    except Exception as error:  # occurs again on the host bridge, which reports it
        _log.info("an FMMForce is left to the host bridge: %s", error)


@_answering
def _request(kernel, what, box, positions, names, values, count, sums, inbox):
    try:
        session = _sessions[kernel]
        cell = np.ctypeslib.as_array(box, (3, 3)).copy()
        parameters = {names[k].decode(): values[k] for k in range(count)}
        known = (
            np.ctypeslib.as_array(positions, (session.particles, 3)).copy() if positions else None
        )
        if what == Delivery.FAILURE:
            raise ValueError(session.explain(cell, known))
        if what == Delivery.PROGRAM:
            session.forget()
        if what == Delivery.FORCES:
            found = session.refine(cell, parameters, known, sums.contents)
        else:
            answer = session.charges if what == Delivery.CHARGES else session.program
            found = answer(cell, parameters, known)
        for kind, data in found.items():
            _deliver(inbox, kind, data)
    except ValueError as error:
        _deliver(inbox, Delivery.BAD_INPUT, f"FMMForce: {error}".encode())
    except Exception as error:
        _deliver(inbox, Delivery.FAILURE, f"FMMForce: {type(error).__name__}: {error}".encode())


@_answering
def _settle(kernel, reason, inbox):
    session = _sessions[kernel]
    reason = reason.decode(errors="replace").removeprefix("FMMForce: ")
    if session.native_only:
        _deliver(
            inbox,
            Delivery.FAILURE,
            f"FMMForce: `{session.native_only}` is not possible: {reason}".encode(),
        )
    else:
        session.reason = reason
        _log.warning("an FMMForce uses the host bridge: %s", reason)


@_answering
def _claim_pairs(kernel, pairs, inbox):
    try:
        pairs = pairs.contents
        if pair_choice.claim(kernel, pairs, pair_choice.bridge_of(pairs)):
            _deliver(inbox, Delivery.CLAIM, b"")
    except Exception as error:
        _deliver(inbox, Delivery.FAILURE, f"FMMForce: {error}".encode())


@_answering
def _pair_program(sites, place, inbox):
    try:
        _deliver(inbox, Delivery.PROGRAM, pair_choice.program(sites.contents, place.contents))
    except Exception as error:
        _deliver(inbox, Delivery.FAILURE, f"FMMForce: {type(error).__name__}: {error}".encode())


@functools.cache
def _report_compilation() -> None:
    """Log once in a process what the creation of a Context waits for."""
    _log.info("compiling kernels (once per precision)")


def _note(text) -> None:
    _log.info("%s", text.decode(errors="replace"))


def _deliver(inbox: Inbox, kind: int, data: bytes) -> None:
    plugin.load().fmm_deliver(inbox, kind, data, len(data))


_answers = (
    *(_open, _request, _settle, _sessions.pop, _claim_pairs, _pair_program, pair_choice.close),
    *(_report_compilation, _note),
)
_callbacks = Callbacks(
    *(kind(answer) for (_, kind), answer in zip(Callbacks._fields_, _answers, strict=True))
)
"""Never freed, as the plugin may call them at any time. Those that close something are functions in
C, in which no interrupt can occur."""
