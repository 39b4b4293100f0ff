"""The program by which OpenMM's device adds the results of a further one to its own.

Both devices have it. Phases of :class:`fmm_openmm.backends.cuda.program.Phase`:

==========  ========================================================================================
``EXPORT``  on the further device: its forces to ``sent_forces``, (3, padded), which the executor
            then copies to the buffer of this name on OpenMM's device
``FORCES``  on OpenMM's: adds them to its own
``ENERGY``  on OpenMM's: adds ``sent_energy``, (energies,), to which the executor has copied the
            further device's energy buffer
==========  ========================================================================================

Forces are sent in float32, to which they are computed, unless OpenMM's precision is double.
"""

import numpy as np

from fmm_openmm.backends.cuda.program import Interface, Phase, Program, ProgramBuilder
from fmm_openmm.backends.cuda.source import real_type

THREADS = 256


def build(interface: Interface, energies: int) -> Program:
    """The program for OpenMM's arrays.

    Args:
        interface: OpenMM's arrays.
        energies: elements of its energy buffer.
    """
    double = interface.precision == "double"
    energy = np.dtype(np.float32 if interface.precision == "single" else np.float64)
    b = ProgramBuilder()
    b.macros(REAL=real_type(energy), SENT="uint64" if double else "float")
    forces = (3, interface.padded)
    b.buffer("force_buffer", forces, np.int64, external=True)
    b.buffer("sent_forces", forces, np.int64 if double else np.float32)
    b.buffer("energy_buffer", energies, energy, external=True)
    b.buffer("sent_energy", energies, energy)
    for kernel, number, phase, buffers in (
        ("send_forces", 3 * interface.padded, Phase.EXPORT, ("force_buffer", "sent_forces")),
        ("add_forces", 3 * interface.padded, Phase.FORCES, ("force_buffer", "sent_forces")),
        ("add_energy", energies, Phase.ENERGY, ("energy_buffer", "sent_energy")),
    ):
        b.stage(kernel, "shares", phase, **{kernel: 0})
        b.launch(kernel, -(-number // THREADS), THREADS, np.int32(number), *buffers)
    return b.program
