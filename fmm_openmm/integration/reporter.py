"""``FMMReporter``: energy, parameters and potentials of the FMM during a simulation, in the style
of ``openmm.app``."""

import os
from collections.abc import Sequence
from typing import IO, TextIO

from openmm import app, unit

from fmm_openmm.checks import check_indices, check_integer
from fmm_openmm.integration.force import FMMForce, find_fmm

PARAMETERS = {
    "Order": "order",
    "Near Radius": "near_radius",
    "Smoothing": "smoothing",
    "Precision": "precision",
    "Backend": "backend",
    "Bridge": "bridge",
    "Expected Error": "expected_error",
}
"""Columns of the parameters and their keys in ``getFMMParametersInContext()``."""


class FMMReporter:
    """Writes energy, parameters and potentials of an FMMForce to a CSV file, as
    ``openmm.app.StateDataReporter`` does for a State.

    Append the reporter to ``simulation.reporters``. The System must hold exactly one FMMForce. Each
    report evaluates the potentials of all particles, which takes about as long as a step.

    Args:
        file: a path, or an object with ``write()``.
        reportInterval: steps between reports.
        step: write the step.
        time: write the time, ps.
        coulombEnergy: write the energy of the FMMForce, kJ/mol: half the sum of charge times
            potential, without the exceptions of a NonbondedForce.
        parameters: write the parameters in use and their expected error. They change when the box
            requires other parameters.
        particles: indices of particles whose potentials are written, kJ/mol/e.
        append: append to an existing file, without a heading.

    Raises:
        ValueError, TypeError: bad arguments; at the first report, not exactly one FMMForce, or a
            particle that does not exist.

    Example:
        >>> simulation.reporters.append(
        ...     FMMReporter("fmm.csv", 1000, particles=[0, 1])
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        file: str | os.PathLike | TextIO,
        reportInterval: int,
        *,
        step: bool = True,
        time: bool = False,
        coulombEnergy: bool = True,
        parameters: bool = False,
        particles: Sequence[int] = (),
        append: bool = False,
    ):
        self._interval = check_integer(reportInterval, "reportInterval", 1, 2**31 - 1)
        self._step, self._time, self._energy = step, time, coulombEnergy
        self._parameters, self._particles = parameters, check_indices(particles, "particles")
        self._force: FMMForce | None = None
        self._has_heading = append
        if isinstance(file, (str, os.PathLike)):
            self._out: IO[str] = open(file, "a" if append else "w", encoding="utf-8")
        elif hasattr(file, "write"):
            self._out = file
        else:
            raise TypeError(f"`file` must be a path or have write(), got {type(file).__name__}")
        self._opened = self._out is not file

    def describeNextReport(self, simulation: app.Simulation) -> dict:
        """Number of steps until the next report. The report needs no data of the State."""
        steps = self._interval - simulation.currentStep % self._interval
        return {"steps": steps, "periodic": None, "include": []}

    def report(self, simulation: app.Simulation, state) -> None:
        """Write a line."""
        if self._force is None:
            self._force = self._found(simulation)
        if not self._has_heading:
            print("#" + ",".join(f'"{name}"' for name in self._columns()), file=self._out)
            self._has_heading = True
        print(",".join(map(str, self._values(simulation, state))), file=self._out, flush=True)

    def _found(self, simulation: app.Simulation) -> FMMForce:
        forces = find_fmm(simulation.system)
        if len(forces) != 1:
            raise ValueError(
                f"an FMMReporter needs a System with one FMMForce, got {len(forces)} of them"
            )
        bad = self._particles[
            (self._particles < 0) | (self._particles >= forces[0].getNumParticles())
        ]
        if len(bad):
            raise ValueError(
                f"`particles` must lie between 0 and {forces[0].getNumParticles() - 1}, got "
                f"{bad[0]}"
            )
        return forces[0]

    def _columns(self) -> list[str]:
        return [
            *(["Step"] if self._step else []),
            *(["Time (ps)"] if self._time else []),
            *(["Coulomb Energy (kJ/mole)"] if self._energy else []),
            *(PARAMETERS if self._parameters else []),
            *(f"Potential of {particle} (kJ/mole/e)" for particle in self._particles),
        ]

    def _values(self, simulation: app.Simulation, state) -> list:
        assert self._force is not None
        context = simulation.context
        values = [simulation.currentStep] if self._step else []
        values += [state.getTime().value_in_unit(unit.picosecond)] if self._time else []
        if self._energy or len(self._particles):
            found, potentials = self._force._evaluate(context, "FMMReporter")
        if self._energy:
            charges = found.charges(dict(context.getParameters()))
            charged = charges != 0  # elsewhere a potential may not be a number
            values.append(0.5 * float(charges[charged] @ potentials[charged]))
        if self._parameters:
            used = self._force.getFMMParametersInContext(context)
            values += [used[key] for key in PARAMETERS.values()]
        return [*values, *(float(potentials[particle]) for particle in self._particles)]

    def __del__(self):
        if getattr(self, "_opened", False):
            self._out.close()
