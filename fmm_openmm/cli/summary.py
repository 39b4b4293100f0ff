"""Results of a simulation: samples, their means, speed and drift."""

from dataclasses import astuple, dataclass

import numpy as np
from openmm import app

from fmm_openmm.bench.systems import BOLTZMANN, degrees_of_freedom


@dataclass
class Sample:
    """A row of the log; energies in kJ/mol, lengths in nm. NaN: the temperature without degrees of
    freedom, the volume in free space."""

    step: int
    time_ps: float
    potential_energy: float
    kinetic_energy: float
    total_energy: float
    temperature: float
    volume: float


@dataclass
class PressureSample:
    """A row of the pressure log, bar: a third of the trace, and the elements of the symmetric
    tensor of molecules."""

    step: int
    time_ps: float
    pressure: float
    xx: float
    yy: float
    zz: float
    xy: float
    xz: float
    yz: float


def seconds_per_step(walls: list[tuple[int, float]]) -> float:
    """Return the wall time of a step, without the first interval if there are several; NaN if there
    is none."""
    counted = walls[1:] or walls or [(1, np.nan)]
    return sum(wall for _, wall in counted) / sum(steps for steps, _ in counted)


def summary(
    args,
    simulation: app.Simulation,
    samples: list[Sample],
    pressures: list[PressureSample],
    seconds: float,
) -> dict:
    """Return speed, means, and for NVE the drift: slope and residual of a line fitted to the total
    energy."""
    values = np.array([astuple(entry) for entry in samples])
    temperature, volume = (values[1:] if len(values) > 1 else values).T[5:7]
    result = {
        "particles": simulation.system.getNumParticles(),
        "platform": simulation.context.getPlatform().getName(),
        "ensemble": args.ensemble,
        "steps": simulation.currentStep,
        "ms_per_step": 1e3 * seconds,
        "ns_per_day": 86.4 * args.timestep / seconds,
        "mean_temperature": float(temperature.mean()),
        "mean_volume": float(volume.mean()),
        "final_total_energy": samples[-1].total_energy,
    }
    if pressures:
        counted = pressures[1:] or pressures
        result["mean_pressure_bar"] = float(np.mean([one.pressure for one in counted]))
    if args.ensemble == "nve" and len(samples) > 2:
        time_ps, energy = values[:, 1], values[:, 4]
        slope, intercept = np.polyfit(time_ps, energy, 1)
        result["drift_kJ_mol_ps"] = float(slope)
        thermal = degrees_of_freedom(simulation.system) * BOLTZMANN * result["mean_temperature"]
        result["drift_kT_ns_dof"] = float(1e3 * slope / thermal)
        result["residual_kJ_mol"] = float(np.std(energy - slope * time_ps - intercept))
    return result


def described(result: dict) -> list[tuple[str, str]]:
    """Return names and values of the summary as text."""
    fmm = result["fmm"]
    expansions = f"order {fmm['order']}, near radius {fmm['near_radius']:g}"
    rows = [
        ("particles", str(result["particles"])),
        ("boundary", result["boundary"]),
        ("platform", result["platform"]),
        ("FMM", f"{expansions}, {fmm['precision']} precision, {fmm['backend']} backend"),
        ("Lennard-Jones", f"{fmm['lennard_jones']}: {fmm['lennard_jones_reason']}"),
    ]
    if np.isfinite(result["ms_per_step"]):
        speed = f"{result['ms_per_step']:.4g} ms a step, {result['ns_per_day']:.4g} ns a day"
        rows.append(("speed", speed))
        rows.append(("mean temperature", f"{result['mean_temperature']:.1f} K"))
    else:
        rows.append(("total energy", f"{result['final_total_energy']:.6f} kJ/mol"))
    if result["ensemble"] == "npt":
        rows.append(("mean volume", f"{result['mean_volume']:.4f} nm^3"))
    if "mean_pressure_bar" in result:
        rows.append(("mean pressure", f"{result['mean_pressure_bar']:.1f} bar"))
    if "drift_kT_ns_dof" in result:
        per_freedom = f"{result['drift_kT_ns_dof']:.3g} kT/ns per degree of freedom"
        rows.append(
            ("drift of total energy", f"{result['drift_kJ_mol_ps']:.3g} kJ/mol/ps, {per_freedom}")
        )
        rows.append(("residual about it", f"{result['residual_kJ_mol']:.3g} kJ/mol"))
    return rows


def draw(drawing, samples: list[Sample], ensemble: str) -> None:
    """Plot total energy and temperature against time, in NPT also the volume."""
    start = samples[0].total_energy
    panels = {
        "total energy\nless its start, kJ/mol": [one.total_energy - start for one in samples],
        "temperature, K": [one.temperature for one in samples],
    }
    if ensemble == "npt":
        panels["volume, nm³"] = [one.volume for one in samples]
    drawing.set_figheight(1.9 * len(panels) + 0.4)
    all_axes = drawing.subplots(len(panels), 1, sharex=True)
    for k, (axes, (label, values)) in enumerate(zip(all_axes, panels.items(), strict=True)):
        axes.plot([one.time_ps for one in samples], values, color=f"C{k}")
        axes.set_ylabel(label)
    all_axes[-1].set_xlabel("time, ps")
