"""The driver of i-PI, by itself and as a client of real i-PI servers."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.units import BOHR, HARTREE

pytest.importorskip("ipi", reason="needs i-PI: pip install 'fmm_openmm[ipi]'")

from fmm_openmm.ipi.fmm_driver import FMMDriver

EDGE = 4 * 0.564 / BOHR / 2
"""Edge of the cube with 64 ions, bohr."""

INPUT = """\
<simulation verbosity='low'>
  <output prefix='run'>
    <properties stride='1' filename='out' flush='1'>
      [ step, conserved, potential, kinetic_md, virial_md ]
    </properties>
  </output>
  <total_steps> {steps} </total_steps>
  <prng> <seed> 1 </seed> </prng>
  <ffsocket name='fmm' mode='{mode}' pbc='false'>
    <address> {address} </address>
    <port> {port} </port>
    <latency> 1e-3 </latency>
    <batch_size> {batch} </batch_size>
    <consolidate_messages> {consolidate} </consolidate_messages>
  </ffsocket>
  <system>
    <initialize nbeads='{beads}'>
      <file mode='xyz'> start.xyz </file>
      <velocities mode='thermal' units='kelvin'> 300 </velocities>
    </initialize>
    <forces> <force forcefield='fmm'/> </forces>
    <ensemble> <temperature units='kelvin'> 300 </temperature> </ensemble>
    <motion mode='dynamics'>
      <dynamics mode='nve'> <timestep units='femtosecond'> 0.25 </timestep> </dynamics>
    </motion>
  </system>
</simulation>
"""
"""Ions without a repulsion, for too short a time to meet."""


def salt():
    """Charges, e, and positions, bohr, of 64 ions."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(4)], indexing="ij"), -1).reshape(-1, 3)
    return 1.0 - 2.0 * (sites.sum(1) % 2), sites * EDGE / 4


@pytest.fixture
def charges(tmp_path):
    """A file with the charges of the salt."""
    np.savetxt(tmp_path / "charges.txt", salt()[0])
    return tmp_path / "charges.txt"


class Run:
    """An i-PI server and its clients in a folder."""

    def __init__(self, folder, charges, steps=50, mode="unix", beads=1, batch=1, consolidate=True):
        self.folder, self.charges, self.mode = folder, charges, mode
        self.address, self.port = f"fmm_{os.getpid()}_{folder.name}", 1
        if mode == "inet":
            self.address = "localhost"
            with socket.socket() as free:
                free.bind(("localhost", 0))
                self.port = free.getsockname()[1]
        q, x = salt()
        names = np.where(q > 0, "Na", "Cl")
        lines = [f"{name} {a} {b} {c}" for name, (a, b, c) in zip(names, x, strict=True)]
        cell = f"# CELL(abcABC): {EDGE} {EDGE} {EDGE} 90 90 90 positions{{atomic_unit}} "
        lines = [str(len(q)), cell + "cell{atomic_unit}", *lines]
        (folder / "start.xyz").write_text("\n".join(lines) + "\n")
        values = {"steps": steps, "mode": mode, "address": self.address, "port": self.port}
        values |= {"beads": beads, "batch": batch, "consolidate": consolidate}
        (folder / "input.xml").write_text(INPUT.format(**values))
        self.processes = []
        self.server = self.start("i-pi", "input.xml")

    def start(self, script, *arguments):
        """A process of one of i-PI's scripts."""
        command = [sys.executable, str(Path(sys.executable).with_name(script)), *arguments]
        log = open(self.folder / f"{len(self.processes)}.log", "w")
        process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def start_client(self):
        """A client that has answered a request of the server."""
        command = [sys.executable, "-m", "fmm_openmm.ipi"]
        path = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        place = ["-a", self.address, "-p", str(self.port), *["-u"] * (self.mode == "unix")]
        options = f"charges={self.charges},tolerance=1e-6"
        done = len(self.rows())
        for _ in range(60):  # until the server listens
            client = self.start("i-pi-py_driver", *place, "-m", "custom", "-P", path, "-o", options)
            while client.poll() is None and len(self.rows()) == done:
                time.sleep(0.05)
            if client.poll() in (None, 0):
                return client
        raise RuntimeError((self.folder / f"{len(self.processes) - 1}.log").read_text())

    def rows(self):
        """What the server has written, a row a step."""
        path = self.folder / "run.out"
        text = path.read_text() if path.exists() else ""
        rows = [line.split() for line in text.splitlines() if line[:1] != "#"]
        return np.array([row for row in rows if len(row) == 10], float)

    def finish(self):
        """Wait for the server, and return its rows."""
        log = (self.folder / "0.log").read_text
        assert self.server.wait(timeout=60) == 0, log()
        return self.rows()

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def start(tmp_path, charges):
    """Starts a server; it ends with the test."""
    runs = []

    def start(**options):
        runs.append(Run(tmp_path, charges, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


def check(rows, steps, beads=1):
    """Energy is conserved, and the trace of the virial is the potential energy."""
    assert rows[:, 0].tolist() == list(range(steps + 1))
    _, conserved, potential, kinetic = rows[:, :4].T
    assert np.ptp(kinetic) > 1e-4  # hartree
    assert np.ptp(conserved) < 1e-3 * np.ptp(kinetic)
    if beads == 1:
        virial = rows[:, 4:7].sum(1) * EDGE**3
        np.testing.assert_allclose(virial, potential, rtol=1e-4)


@pytest.mark.slow
def test_a_run_over_a_unix_socket(start):
    run = start()
    run.start_client()
    check(run.finish(), 50)


@pytest.mark.slow
def test_a_killed_client_is_replaced(start):
    """Over TCP. With consolidated messages i-PI 3.3 itself ends when a client is killed while it
    computes: it does not expect that the connection is reset."""
    run = start(mode="inet", steps=300, consolidate=False)
    first = run.start_client()
    while len(run.rows()) < 10:
        time.sleep(0.05)
    first.kill()
    first.wait()
    done = len(run.rows())
    assert 10 <= done < 300
    assert run.server.poll() is None
    run.start_client()
    rows = run.finish()
    assert rows[:, 0].tolist() == list(range(301))
    check(rows[:51], 50)


@pytest.mark.slow
def test_batches(start):
    run = start(steps=10, beads=4, batch=4)
    run.start_client()
    rows = run.finish()
    assert rows[:, 0].tolist() == list(range(11))
    assert np.ptp(rows[:, 1]) < 1e-2 * np.ptp(rows[:, 3])


@pytest.mark.slow
def test_forces_and_virial_are_derivatives(charges):
    driver = FMMDriver(str(charges), tolerance=1e-8, precision="double", backend="cpu")
    rng = np.random.default_rng(1)
    x = salt()[1] + 0.3 * rng.normal(size=(64, 3))
    cell = EDGE * np.array([[1.0, 0.7, -0.1], [0, 1, 0.2], [0, 0, 1.1]])  # columns, not reduced
    _, forces, virial, extras = driver(cell, x)
    assert (forces.shape, virial.shape, extras) == ((64, 3), (3, 3), "")
    step = 1e-4
    for atom, axis in ((0, 0), (5, 2)):
        d = np.zeros_like(x)
        d[atom, axis] = step
        slope = (driver(cell, x + d)[0] - driver(cell, x - d)[0]) / (2 * step)
        assert -slope == pytest.approx(forces[atom, axis], rel=1e-6)
    for i, j in ((0, 0), (2, 1)):
        strain = np.zeros((3, 3))
        strain[i, j] = strain[j, i] = 1e-5 / (1 + (i != j))

        def strained(e):
            return driver((np.eye(3) + e) @ cell, x @ (np.eye(3) + e))[0]

        slope = (strained(strain) - strained(-strain)) / 2e-5
        assert -slope == pytest.approx(virial[i, j], rel=1e-6)


def test_a_batch_is_a_list(charges):
    driver = FMMDriver(str(charges), tolerance=1e-3)
    cell, x = EDGE * np.eye(3), salt()[1]
    both = driver([cell, 1.1 * cell], [x, 1.1 * x])
    assert [energy for energy, *_ in both] == pytest.approx(
        [driver(cell, x)[0], driver(1.1 * cell, 1.1 * x)[0]], rel=1e-9
    )


def test_files_of_charges(tmp_path):
    positions = np.array([[0.0, 0, 0], [2.0, 0, 0], [0, 3.0, 0]])
    pair = fmm.ChargeSystem([1.0, -1.0, 0.5], exclusions=[(0, 1)])
    pair.save(tmp_path / "three.npz")
    for boundary in None, "open":  # None is that of the file
        driver = FMMDriver(str(tmp_path / "three.npz"), boundary=boundary, tolerance=1e-8)
        energy, _, virial, _ = driver(np.eye(3), positions)
        assert energy == pytest.approx(0.5 / 3 - 0.5 / 13**0.5, rel=1e-8)  # in atomic units
        assert np.trace(virial) == pytest.approx(energy, rel=1e-8)
    (tmp_path / "bad.txt").write_text("Na 1.0\n")
    with pytest.raises(ValueError, match=r"bad.txt must have one charge on each line"):
        FMMDriver(str(tmp_path / "bad.txt"))
    with pytest.raises(OSError):
        FMMDriver(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("boundary", "text"),
    [("slab", "-9 12.5"), ("slab", 12.5), ("c", "1 1 0 25; 0.5 1 0 2"), ("c", "1 1 0 25")],
)
def test_a_net_charge_that_is_neutralised(tmp_path, boundary, text):
    """With the option as i-PI reads it from ``-o``."""
    np.savetxt(tmp_path / "ions.txt", [1.0, 1.0, -0.5])
    x = np.array([[0.0, 0, 0], [2.0, 0, 1.0], [0, 3.0, 0]])
    options = {"boundary": boundary, "tolerance": 1e-8, "backend": "cpu"}
    driver = FMMDriver(str(tmp_path / "ions.txt"), neutralization=text, **options)
    energy, forces, _, _ = driver(10 * np.eye(3), x)
    values = np.atleast_1d([row.split() for row in str(text).split(";")]).astype(float)
    values = BOHR * (values[0] if boundary == "slab" else values)
    solver = fmm.CoulombSolver(
        [1.0, 1.0, -0.5], 10 * BOHR * np.eye(3), neutralization=values, **options
    )
    expected = solver.compute(BOHR * x)
    assert energy == pytest.approx(expected.energy / HARTREE, rel=1e-8)
    np.testing.assert_allclose(forces, expected.forces * BOHR / HARTREE, atol=1e-8)


def test_what_is_refused(charges):
    with pytest.raises(ValueError, match="`tolerance` must lie between"):
        FMMDriver(str(charges), tolerance=3.0)
    with pytest.raises(ValueError, match="`boundary` must be one of"):
        FMMDriver(str(charges), boundary="box")
    with pytest.raises(ValueError, match="`neutralization` must be numbers separated by spaces"):
        FMMDriver(str(charges), boundary="slab", neutralization="-40:60")
    with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
        FMMDriver(str(charges), neutralization="-40 60")
    with pytest.raises(TypeError, match="did you mean `tolerance`"):
        FMMDriver(str(charges), tolerence=1e-4)
    with pytest.raises(ValueError, match="with n = 64"):
        FMMDriver(str(charges))(EDGE * np.eye(3), np.zeros((3, 3)))


def test_atomic_units():
    """Charges 1 e apart by 1 bohr have 1 hartree."""
    assert HARTREE * BOHR == pytest.approx(138.93545764438198, rel=1e-12)


@pytest.mark.slow
def test_a_missing_package_is_one_line():
    script = (
        "import sys; sys.modules['ipi'] = None\n"
        "try:\n    import fmm_openmm.ipi.fmm_driver\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("ipi is needed here: pip install 'fmm_openmm[ipi]'")
    assert done.stdout.count("\n") == 1
