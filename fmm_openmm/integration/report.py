"""What :func:`fmm_openmm.validate` returns: errors of FMM and PME, as text, HTML and a figure."""

from dataclasses import dataclass, field
from html import escape

import numpy as np

from fmm_openmm.display import html_table
from fmm_openmm.planning.request import FMMParameters

COLUMNS = (
    "",
    "energy, kJ/mol",
    "energy error",
    "RMS force error",
    "largest force error",
    "largest, kJ/mol/nm",
)
"""Columns of the table in notebooks."""

BINS = 40
"""Number of bins of the histogram."""


@dataclass(frozen=True)
class Comparison:
    """One method compared with the reference.

    Attributes:
        method: name and tolerance of the method.
        energy: kJ/mol.
        relative_energy_error: ``|U - U_ref| / |U_ref|``.
        relative_rms_force_error: ``|F - F_ref| / |F_ref|`` over all particles; where forces cancel
            over more than ``F_ref``, see :data:`fmm_openmm.integration.validation.CANCELLED`.
        relative_max_force_error: largest ``|F_i - F_ref,i|`` over the RMS of ``F_ref,i``, or over
            the same larger force.
        max_force_error: largest ``|F_i - F_ref,i|``, kJ/mol/nm.
        force_errors: ``|F_i - F_ref,i|`` of every particle, shape (n,), kJ/mol/nm.
    """

    method: str
    energy: float
    relative_energy_error: float
    relative_rms_force_error: float
    relative_max_force_error: float
    max_force_error: float
    force_errors: np.ndarray = field(repr=False, compare=False)

    @classmethod
    def from_results(
        cls, method: str, result: tuple, reference: tuple, least: float = 0.0
    ) -> "Comparison":
        """Compare the result of a method with the reference.

        Args:
            method: its name.
            result, reference: energy, kJ/mol, and forces, shape (n, 3), kJ/mol/nm.
            least: RMS force, kJ/mol/nm, in place of a smaller one in the relative error.
        """
        (energy, forces), (exact_energy, exact_forces) = result, reference
        errors = np.linalg.norm(forces - exact_forces, axis=1)
        scale = max(np.linalg.norm(exact_forces), least * np.sqrt(len(errors)))
        return cls(
            method,
            float(energy),
            abs(energy - exact_energy) / (abs(exact_energy) or 1.0),
            float(np.linalg.norm(errors) / (scale or 1.0)),
            float(errors.max() * np.sqrt(len(errors)) / (scale or 1.0)),
            float(errors.max()),
            errors,
        )


@dataclass(frozen=True, repr=False)
class ValidationReport:
    """Result of :func:`validate`, for the Coulomb interaction without exceptions and Lennard-Jones.

    Attributes:
        particles: number of particles.
        tolerance: relative RMS force error that was requested of the FMM.
        parameters: parameters of the FMM.
        reference: name of the reference.
        reference_energy: kJ/mol.
        fmm: the FMM compared with the reference.
        pme: OpenMM's PME compared with the reference; None in free space, and if its grid would not
            fit into memory. PME uses the cutoff of the System, or a shorter one in small cells, and
            the splitting parameter and grid of the System if they are set, else its tolerance.
        backend: backend of the FMM.
        pme_left_out: the reason why ``pme`` is None in a periodic cell, else None.
        error_norm: norm of the tolerance.
    """

    particles: int
    tolerance: float
    parameters: FMMParameters
    reference: str
    reference_energy: float
    fmm: Comparison
    pme: Comparison | None
    backend: str
    pme_left_out: str | None = None
    error_norm: str = "rms"

    @property
    def energy(self) -> float:
        """Energy of the FMM, kJ/mol."""
        return self.fmm.energy

    @property
    def relative_energy_error(self) -> float:
        """Relative energy error of the FMM."""
        return self.fmm.relative_energy_error

    @property
    def relative_rms_force_error(self) -> float:
        """Relative RMS force error of the FMM."""
        return self.fmm.relative_rms_force_error

    @property
    def relative_max_force_error(self) -> float:
        """Largest error of a force of the FMM, relative to the RMS force."""
        return self.fmm.relative_max_force_error

    @property
    def max_force_error(self) -> float:
        """Largest error of a force of the FMM, kJ/mol/nm."""
        return self.fmm.max_force_error

    @property
    def passed(self) -> bool:
        """Whether the FMM meets its tolerance."""
        largest = self.error_norm == "max"
        error = self.relative_max_force_error if largest else self.relative_rms_force_error
        return error <= self.tolerance

    @property
    def methods(self) -> list[Comparison]:
        """The comparisons of the FMM and, if there is one, of PME."""
        return [each for each in (self.fmm, self.pme) if each]

    def __repr__(self) -> str:
        errors = ", ".join(
            f"{each.method}: relative RMS force error {each.relative_rms_force_error:.1e}"
            for each in self.methods
        )
        verdict = "passed" if self.passed else "FAILED"
        return f"ValidationReport({self.particles} particles, {errors}, {verdict})"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        rows = [
            (
                each.method,
                f"{each.energy:.6f}",
                f"{each.relative_energy_error:.2e}",
                f"{each.relative_rms_force_error:.2e}",
                f"{each.relative_max_force_error:.2e}",
                f"{each.max_force_error:.2e}",
            )
            for each in self.methods
        ]
        title, verdict = self._title(), self._verdict()
        return f"{html_table(rows, COLUMNS, title)}<p>{escape(verdict)}</p>"

    def plot(self, axes=None):
        """A histogram of the force errors of all particles, one outline a method.

        Args:
            axes: matplotlib axes to draw into; new ones where None.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
        """
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise ImportError(
                    "report.plot() needs matplotlib: pip install 'fmm_openmm[plot]'"
                ) from error
            axes = pyplot.figure(figsize=(7, 4.2), layout="constrained").add_subplot()
        found = [each.force_errors[each.force_errors > 0] for each in self.methods]
        logs = [np.log10(errors) for errors in found if len(errors)]
        if logs:
            bins = np.logspace(
                min(each.min() for each in logs), max(each.max() for each in logs), BINS + 1
            )
            for each, errors in zip(self.methods, found, strict=True):
                axes.hist(errors, bins, histtype="step", linewidth=1.5, label=each.method)
            axes.legend()
        axes.set_xscale("log")
        axes.set_xlabel("error of a particle's force, kJ/mol/nm")
        axes.set_ylabel("particles")
        return axes

    def summary(self) -> str:
        """A table of the methods, and a sentence that says which one is closer to the reference."""
        width = max(12, *(len(each.method) for each in self.methods))
        lines = [
            self._title(),
            f"{'':{width}}{'energy, kJ/mol':>20}{'energy error':>15}"
            f"{'RMS force error':>17}{'largest error':>15}{'in kJ/mol/nm':>14}",
        ]
        for each in self.methods:
            lines.append(
                f"{each.method:{width}}{each.energy:20.6f}{each.relative_energy_error:15.2e}"
                f"{each.relative_rms_force_error:17.2e}"
                f"{each.relative_max_force_error:15.2e}{each.max_force_error:14.2e}"
            )
        if self.pme_left_out:
            lines.append(f"PME: {self.pme_left_out}")
        return "\n".join([*lines, self._verdict()])

    def _title(self) -> str:
        return (
            f"{self.particles} particles, Coulomb interaction alone, FMM on the {self.backend} "
            f"backend, against {self.reference}: {self.reference_energy:.6f} kJ/mol"
        )

    def _verdict(self) -> str:
        closer = min(self.methods, key=lambda each: each.relative_rms_force_error)
        verdict = "meets" if self.passed else "MISSES"
        comparison = f"; {closer.method} has the smaller RMS force error" if self.pme else ""
        return f"FMM {verdict} its tolerance of {self.tolerance:g}{comparison}."
