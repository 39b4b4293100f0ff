"""Charges fitted to forces with PyTorch: the forces of a force field on water and ions, and Adam.

A model whose charges are learned needs the gradient of its loss with respect to them. With a loss
of forces that is a second derivative of the energy, which ``fmm_openmm.torch`` provides. Here the
charges of the atoms of water, sodium and chloride start far from those of the force field, whose
Coulomb forces, by OpenMM's PME at a tight tolerance, are the reference. The picture shows how they
converge.

Forces determine charges up to a common sign, and only the sum of water's charges is given: it is
zero. Each step of the optimizer costs three evaluations of the FMM: one for the forces, two for
their gradient.
"""

import numpy as np
import openmm
import torch
from common import new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm.torch as fmm_torch
from fmm_openmm import ChargeSystem

KINDS = ("O", "H", "Na", "Cl")
NM = unit.nanometers


def make_frames(edge, frames, spacing):
    """Charges, kinds and exclusions of salt water, positions of some frames, shape (frames, n, 3),
    nm, box vectors, and the Coulomb forces of the frames, kJ/mol/nm."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * NM)
    box = openmm.Vec3(edge, edge, edge) * NM
    modeller.addSolvent(forcefield, boxSize=box, ionicStrength=1.0 * unit.molar)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.8 * NM
    )
    integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.002)
    simulation = app.Simulation(modeller.topology, system, integrator)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=100)
    simulation.context.setVelocitiesToTemperature(300)
    positions = []
    for _ in range(frames):
        simulation.step(spacing)
        state = simulation.context.getState(positions=True)
        positions.append(state.getPositions(asNumpy=True).value_in_unit(NM))
    charges = ChargeSystem.from_openmm(system)
    kinds = [KINDS.index(atom.element.symbol) for atom in modeller.topology.atoms()]
    return charges, np.array(kinds), np.array(positions), coulomb_forces(system, positions)


def coulomb_forces(system, positions):
    """Forces of the charges alone, by PME in double precision."""
    for force in list(system.getForces()):
        if isinstance(force, openmm.NonbondedForce):
            force.setEwaldErrorTolerance(1e-5)
            for particle in range(force.getNumParticles()):
                charge, *_ = force.getParticleParameters(particle)
                force.setParticleParameters(particle, charge, 0.3, 0.0)
    others = [
        number
        for number, force in enumerate(system.getForces())
        if not isinstance(force, openmm.NonbondedForce)
    ]
    for number in reversed(others):
        system.removeForce(number)
    platform = openmm.Platform.getPlatform("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    found = []
    for each in positions:
        context.setPositions(each * NM)
        forces = context.getState(forces=True).getForces(asNumpy=True)
        found.append(forces.value_in_unit(unit.kilojoules_per_mole / NM))
    return np.array(found)


def fit(system, kinds, positions, targets, steps):
    """Charges of the kinds at each step, shape (steps, 4), e, and the relative force errors."""
    x, targets = torch.tensor(positions), torch.tensor(targets)
    cell, exclusions = torch.tensor(system.box_vectors), torch.tensor(system.exclusions)
    kinds = torch.tensor(kinds)
    free = torch.tensor([0.2, 0.3, -0.3], dtype=torch.float64, requires_grad=True)  # H, Na, Cl
    optimizer = torch.optim.Adam([free], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    history, errors = [], []
    for step in range(steps):
        hydrogen, *ions = free
        charges = torch.stack([-2 * hydrogen, hydrogen, *ions])
        frame = step % len(x)
        forces = fmm_torch.evaluate(
            x[frame], charges[kinds], cell, exclusions=exclusions, tolerance=1e-4
        ).forces
        loss = (forces - targets[frame]).square().sum() / targets[frame].square().sum()
        history.append(charges.detach().numpy().copy())
        errors.append(float(loss.detach().sqrt()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return np.array(history), np.array(errors)


def draw(history, errors, exact):
    figure = new_figure(9.6, 4)
    left, right = figure.subplots(1, 2)
    for kind, values, value in zip(KINDS, history.T, exact, strict=True):
        (line,) = left.plot(values, label=kind)
        left.axhline(value, color=line.get_color(), linestyle=":")
    left.set(title="Charges; dotted: of the force field", xlabel="step", ylabel="charge, e")
    left.legend()
    right.semilogy(errors)
    right.set(title="Forces", xlabel="step", ylabel="relative RMS error of the forces")
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "one frame of a small box, fewer steps")
    edge, frames, spacing, steps = (1.9, 1, 50, 100) if arguments.short else (2.4, 4, 500, 200)
    system, kinds, positions, targets = make_frames(edge, frames, spacing)
    exact = [system.charges[kinds == number][0] for number in range(len(KINDS))]
    print(f"{len(kinds)} atoms, {frames} frame{'s' * (frames > 1)}, {steps} steps of Adam")
    history, errors = fit(system, kinds, positions, targets, steps)
    print(f"{'':16}" + "".join(f"{kind:>9}" for kind in KINDS) + "   force error")
    for step in (0, steps // 4, steps // 2, steps - 1):
        row = "".join(f"{value:9.4f}" for value in history[step])
        print(f"step {step:<11}{row}   {errors[step]:.1e}")
    print(f"{'force field':16}" + "".join(f"{value:9.4f}" for value in exact) + "\n")
    save(draw(history, errors, exact), arguments)
    if np.abs(history[-1] - exact).max() > 0.01:
        raise SystemExit("the charges did not converge to those of the force field")


if __name__ == "__main__":
    main()
