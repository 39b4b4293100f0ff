"""A cluster of ions in i-PI: a server, and as its client the driver of the FMM.

The FMM computes the Coulomb interaction of 64 monovalent ions in free space, through a Unix socket,
and i-PI itself a Lennard-Jones repulsion. The server moves the ions at constant energy. The total
energy is checked, and the trace of the virial, which of a Coulomb interaction is its energy. The
picture shows potential, kinetic and total energy.

``python -m fmm_openmm.ipi`` prints the path of the driver, which ``i-pi-py_driver`` loads. Charges
come from a file with one on each line.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import new_figure, parse_arguments, save

from fmm_openmm.units import BOHR, HARTREE

SPACING = 2.61  # of the ions at the start, A, where attraction and repulsion balance

INPUT = """\
<simulation verbosity='low'>
  <output prefix='run'>
    <properties stride='1' filename='out'>
      [ time{{picosecond}}, conserved, potential, kinetic_md, pot_component_raw(0), virial_md ]
    </properties>
  </output>
  <total_steps> {steps} </total_steps>
  <prng> <seed> 1 </seed> </prng>
  <ffsocket name='coulomb' mode='unix' pbc='false'>
    <address> {address} </address>
    <latency> 1e-4 </latency>
  </ffsocket>
  <fflj name='repulsion' pbc='false'>
    <parameters> {{eps: 3e-3, sigma: 5.0}} </parameters>
  </fflj>
  <system>
    <initialize nbeads='1'>
      <file mode='xyz'> start.xyz </file>
      <velocities mode='thermal' units='kelvin'> 300 </velocities>
    </initialize>
    <forces>
      <force forcefield='coulomb'/>
      <force forcefield='repulsion'/>
    </forces>
    <ensemble> <temperature units='kelvin'> 300 </temperature> </ensemble>
    <motion mode='dynamics'>
      <dynamics mode='nve'> <timestep units='femtosecond'> 1.0 </timestep> </dynamics>
    </motion>
  </system>
</simulation>
"""


def write_inputs(folder: Path, steps: int, address: str) -> None:
    """Write the files of the server and of its client."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(4)], indexing="ij"), -1).reshape(-1, 3)
    is_cation = sites.sum(1) % 2 == 0
    cell = "# CELL(abcABC): 100 100 100 90 90 90 positions{angstrom} cell{angstrom}"
    lines = [str(len(sites)), cell]
    for cation, (x, y, z) in zip(is_cation, SPACING * sites, strict=True):
        lines.append(f"{'Na' if cation else 'Cl'} {x} {y} {z}")
    (folder / "start.xyz").write_text("\n".join(lines) + "\n")
    (folder / "input.xml").write_text(INPUT.format(steps=steps, address=address))
    np.savetxt(folder / "charges.txt", np.where(is_cation, 1.0, -1.0))


def run(steps: int) -> np.ndarray:
    """What the server writes, a row a step."""
    scripts, address = Path(sys.executable).parent, f"fmm_example_{os.getpid()}"
    path = subprocess.check_output([sys.executable, "-m", "fmm_openmm.ipi"], text=True).strip()
    options = "charges=charges.txt,boundary=open,tolerance=1e-6"
    driver = [scripts / "i-pi-py_driver", "-u", "-a", address, "-m", "custom", "-P", path]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, steps, address)
        with open(folder / "log", "w") as log:
            output = {"cwd": folder, "stdout": log, "stderr": log}
            server = subprocess.Popen([sys.executable, scripts / "i-pi", "input.xml"], **output)
            try:
                while not Path(f"/tmp/ipi_{address}").exists() and server.poll() is None:
                    time.sleep(0.1)
                subprocess.run([sys.executable, *driver, "-o", options], check=True, **output)
                server.wait(timeout=60)
            finally:
                server.kill()
        return np.loadtxt(folder / "run.out")


def draw(times, kinetic, potential, total):
    """Changes of the energies in time."""
    figure = new_figure()
    axes = figure.subplots()
    for name, energy in (("kinetic", kinetic), ("potential", potential), ("total", total)):
        axes.plot(times, energy - energy[0], label=name)
    axes.set(title="64 ions in free space", xlabel="time, ps", ylabel="change of energy, kJ/mol")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "50 steps instead of 2,000")
    steps = 50 if arguments.short else 2000
    rows = run(steps)
    times = rows[:, 0]
    total, potential, kinetic, coulomb = HARTREE * rows[:, 1:5].T
    virial = HARTREE * rows[:, 5:8].sum(1) * (10.0 / BOHR) ** 3

    print(f"{'time, ps':>9}{'potential':>12}{'of it Coulomb':>15}{'kinetic':>10}{'total':>12}")
    for step in np.linspace(0, steps, 6).astype(int):
        print(
            f"{times[step]:9.3f}{potential[step]:12.2f}{coulomb[step]:15.2f}"
            f"{kinetic[step]:10.2f}{total[step]:12.3f}"
        )
    drift, error = np.ptp(total) / np.ptp(kinetic), np.abs(virial / coulomb - 1).max()
    print(f"\nkJ/mol. Range of the total over that of the kinetic energy: {drift:.1e}.")
    print(f"Largest relative difference of trace of the virial and Coulomb energy: {error:.1e}.")
    save(draw(times, kinetic, potential, total), arguments)
    if len(rows) != steps + 1 or drift > 0.02 or error > 1e-5:
        raise SystemExit("the energy is not conserved, or the virial is wrong")


if __name__ == "__main__":
    main()
