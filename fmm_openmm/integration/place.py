"""``Place``: what the plugin tells of a Context's device and arrays."""

import ctypes

from fmm_openmm.backends.cuda.program import Device, Interface

PRECISIONS = ("single", "mixed", "double")


class Place(ctypes.Structure):
    """Where a force is computed: ``Place`` of ``fmm_openmm/native/openmm/python.h``."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ("precision", "particles", "padded", "processors", "shared", "group")
        ),
        ("model", ctypes.c_char_p),
    )

    @property
    def device(self) -> Device:
        """The facts of the device."""
        return Device(self.processors, self.shared)

    @property
    def interface(self) -> Interface:
        """OpenMM's arrays."""
        return Interface(PRECISIONS[self.precision], self.padded)
