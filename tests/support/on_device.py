"""Arrays and an evaluator that only behave as if they were on a device."""

from types import SimpleNamespace

import numpy as np

from fmm_openmm.backends import backend_class
from fmm_openmm.checks import MAX_COORDINATE
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.units import COULOMB_CONSTANT


class DeviceArray(np.ndarray):
    """An array that claims to be on a device."""

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    def get(self):
        return np.array(self)


def device_array(values):
    return np.array(values).view(DeviceArray)


class DeviceEvaluator(backend_class("cpu")):
    """Delivers the sums of an evaluation once it is waited for, or something else is queued."""

    waits = 0

    def __init__(self, specification):
        super().__init__(specification)
        self.force_sums = self._pending = np.nan, np.nan, np.nan
        self.run = SimpleNamespace(buffers={"charges": device_array(self.charges)})

    def compute(self, positions, width, origin):
        self.force_sums = self._pending
        potentials, fields = self.evaluate(positions.get() - np.array(origin), width)
        self._pending = force_sums(self.charges, fields, potentials)
        scale = COULOMB_CONSTANT / width
        fields = scale / width * fields
        energy = [scale * (self.charges @ potentials) / 2]
        found = energy, self.charges[:, None] * fields, scale * potentials, fields
        return [device_array(each) for each in found]

    def queue(self, fill, width):
        fill(self.run)
        self.set_charges(self.run.buffers["charges"].get())
        self.run.buffers["forces"] = self.compute(
            self.run.buffers["positions"], width, np.zeros(3)
        )[1]

    def charge_sets(self, positions, width, origin):
        self.force_sums = self._pending
        particles = super().charge_sets(positions.get() - np.array(origin), width)
        scale = COULOMB_CONSTANT / width

        def compute_matrix(charges):
            return device_array(scale * particles.matrix(charges.get(), np.inf))

        return SimpleNamespace(
            count=particles.count,
            compute_matrix=compute_matrix,
            operator=lambda: particles,
            energies_among=lambda group: particles.among_groups(self.charges, group, np.inf),
        )

    def wait(self):
        type(self).waits += 1
        self.force_sums = self._pending

    def copy_charges(self):
        return self.charges


class QueuedFrame:
    """A frame of :class:`QueueingEvaluator`, which notes its number when it is waited for."""

    def __init__(self, number, positions, found, results):
        self.number, self.positions, self._found, self._results = number, positions, found, results

    def wait(self):
        notes.append(("wait", self.number))

    @property
    def found(self):
        assert ("wait", self.number) in notes
        return self._found

    def copy(self):
        return self._results


class QueueingEvaluator(DeviceEvaluator):
    """Queues frames, and notes their numbers."""

    @property
    def frames(self):
        return self

    def queue_frame(self, positions, width, largest, names):
        number, x = sum(what == "queue" for what, _ in notes), positions.copy()
        notes.append(("queue", number))
        outside = np.sum(~(np.abs(x) <= MAX_COORDINATE))
        found = self.compute(device_array(np.where(outside, 0.0, x)), width, np.zeros(3))
        energy, *results = (np.asarray(each) for each in found)
        results = dict(zip(("forces", "potentials", "fields"), results, strict=True))
        limit = largest * COULOMB_CONSTANT / width
        invalid = outside + np.sum(~(np.abs(results["potentials"]) <= limit))
        copies = {name: results[name].copy() for name in names}
        return QueuedFrame(number, x, (float(energy[0]), invalid, *self._pending), copies)

    def release(self, frame):
        frame.positions[...] = np.nan  # another frame's may take their place


notes: list[tuple[str, int]] = []
"""Frames that were queued or waited for."""
