"""Energy, forces and potentials through PyTorch: ``fmm_openmm.torch`` and the particle mesh Ewald
methods of torch-pme and of nvalchemi-toolkit-ops.

A molten salt at random, whose ions have no exclusions. Times are of the energy and its gradients
with respect to positions and charges. Particle mesh Ewald is given the list of neighbours. The
parameters are those that the tuning of torch-pme, at a fixed cutoff, and the estimate of
nvalchemi-toolkit-ops find for the tolerance.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import torch
from scipy.spatial import cKDTree

from fmm_openmm.bench.timing import median_seconds
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.solver import CoulombSolver
from fmm_openmm.torch import coulomb
from fmm_openmm.units import COULOMB_CONSTANT
from fmm_openmm.version import __version__

SPACING = 0.28
"""Distance of neighbouring sites, nm."""

CUTOFF = 1.2
"""Cutoff of torch-pme, nm."""

EWALD_IONS = 30_000
"""Number of ions up to which an Ewald sum is the reference; beyond it is the FMM at 1e-9."""

Energy = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def salt(edge: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (n, 3), nm, charges (n,), e, and box vectors (3, 3), nm, of ions displaced from the
    sites of rock salt, ``edge`` of them along each axis, an even number."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(edge)], indexing="ij"), -1).reshape(-1, 3)
    random = np.random.default_rng(1)
    x = SPACING * sites + random.normal(0.0, 0.03, sites.shape)
    return x, 1.0 - 2.0 * (sites.sum(1) % 2), SPACING * edge * np.eye(3)


def exact_forces(x: np.ndarray, q: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Forces to more digits than any tolerance measured here, shape (n, 3), kJ/mol/nm."""
    if len(q) <= EWALD_IONS:
        return ewald_sum(x, q, box).forces
    return CoulombSolver(q, box, tolerance=1e-9, backend="cpu").compute(x).forces


def measure(edges, tolerance: float, device: str, dtype: torch.dtype) -> Iterator[dict]:
    """One row for each size and code: code, name and version of its package, atoms, seconds, memory
    (peak of PyTorch's allocator during one evaluation, bytes; None on the CPU), force error and
    parameters. A code whose memory does not suffice has no further rows.

    Args:
        edges: numbers of ions along the edge, each even.
        tolerance: relative RMS force error that is requested.
        device: "cpu" or "cuda".
        dtype: dtype of positions and charges.
    """
    codes = {code: make for code, make in CODES.items() if code == "fmm_openmm" or find_spec(code)}
    for edge in edges:
        x, q, box = salt(edge)
        exact = exact_forces(x, q, box)
        for code, make in list(codes.items()):
            positions = torch.tensor(x, dtype=dtype, device=device, requires_grad=True)
            charges = torch.tensor(q, dtype=dtype, device=device, requires_grad=True)
            given = positions.detach(), charges.detach()
            try:
                energy, parameters = make(*given, box, tolerance, exact)
                found = evaluate(energy, positions, charges, exact)
            except (torch.OutOfMemoryError, MemoryError):
                del codes[code]
                continue
            yield {
                "code": code,
                "package": package(code),
                "atoms": len(q),
                **found,
                "parameters": parameters,
            }


def evaluate(energy: Energy, x: torch.Tensor, q: torch.Tensor, exact: np.ndarray) -> dict:
    """Time, memory and force error of an energy and its gradients."""

    def gradients():
        found = torch.autograd.grad(energy(x, q), (x, q))
        if x.is_cuda:
            torch.cuda.synchronize()
        return found

    forces = -gradients()[0].cpu().double().numpy()
    memory = None
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        gradients()
        memory = torch.cuda.max_memory_allocated()
    return {
        "seconds": median_seconds(gradients),
        "memory": memory,
        "force_error": float(np.linalg.norm(forces - exact) / np.linalg.norm(exact)),
    }


def by_fmm(x, q, box, tolerance: float, exact) -> tuple[Energy, str]:
    """The energy by ``fmm_openmm.torch``."""
    cell = torch.tensor(box)
    return lambda x, q: coulomb(x, q, cell, tolerance=tolerance), ""


def by_torch_pme(x, q, box, tolerance: float, exact) -> tuple[Energy, str]:
    """The energy by torch-pme at the parameters that its tuning finds."""
    import torchpme
    from torchpme.tuning import tune_pme

    edge = box[0, 0]
    cutoff = min(CUTOFF, 0.49 * edge)
    wrapped = np.mod(x.cpu().double().numpy(), edge)
    pairs = cKDTree(wrapped, boxsize=edge).query_pairs(cutoff, output_type="ndarray")
    images = torch.tensor(edge * np.rint((wrapped[pairs[:, 1]] - wrapped[pairs[:, 0]]) / edge))
    images, offset = images.to(x), torch.tensor(wrapped).to(x) - x
    neighbours, cell = torch.tensor(pairs).to(x.device), torch.tensor(box).to(x)
    first, second = neighbours[:, 0], neighbours[:, 1]

    def distances(x):
        moved = x + offset
        return (moved[second] - moved[first] - images).norm(dim=1)

    accuracy = tolerance * np.sqrt((exact**2).sum(1).mean()) / COULOMB_CONSTANT
    smearing, options, _ = tune_pme(
        q[:, None], cell, x + offset, cutoff, neighbours, distances(x), accuracy=float(accuracy)
    )
    calculator = torchpme.PMECalculator(torchpme.CoulombPotential(smearing), **options).to(x)

    def energy(x, q):
        potentials = calculator(q[:, None], cell, x + offset, neighbours, distances(x))
        return COULOMB_CONSTANT * (q * potentials[:, 0]).sum()

    described = ", ".join(f"{name} {value:.3g}" for name, value in options.items())
    return energy, f"cutoff {cutoff:.3g}, smearing {smearing:.3g}, {described}"


def by_nvalchemi(x, q, box, tolerance: float, exact) -> tuple[Energy, str]:
    """The energy by nvalchemi-toolkit-ops at the parameters that it estimates, in Å, which its
    lists of neighbours expect."""
    from nvalchemiops.torch.interactions.electrostatics import (
        estimate_pme_parameters,
        generate_k_vectors_pme,
        particle_mesh_ewald,
    )
    from nvalchemiops.torch.neighbors import neighbor_list

    x, cell = 10.0 * x, 10.0 * torch.tensor(box).to(x)[None]
    found = estimate_pme_parameters(x, cell, accuracy=tolerance)
    cutoff, mesh = float(found.real_space_cutoff[0]), found.mesh_dimensions
    periodic = torch.ones((1, 3), dtype=torch.bool, device=x.device)
    neighbours, _, images = neighbor_list(x, cutoff, cell, periodic)
    waves, squares = generate_k_vectors_pme(cell, mesh)

    def energy(x, q):
        energies = particle_mesh_ewald(
            10.0 * x,
            q,
            cell,
            found.alpha,
            mesh_dimensions=mesh,
            k_vectors=waves,
            k_squared=squares,
            neighbor_matrix=neighbours,
            neighbor_matrix_shifts=images,
            energy_reduction="system",
        )
        return 10.0 * COULOMB_CONSTANT * energies[0]

    return energy, f"cutoff {cutoff / 10.0:.3g}, mesh {mesh[0]}"


CODES: dict[str, Callable] = {
    "fmm_openmm": by_fmm,
    "torchpme": by_torch_pme,
    "nvalchemiops": by_nvalchemi,
}
"""What makes the energy of each code, by the name of its module."""

PACKAGES = {"torchpme": "torch-pme", "nvalchemiops": "nvalchemi-toolkit-ops"}
"""The packages of the other codes."""


def package(code: str) -> str:
    """Name and version of the package of a code."""
    if code not in PACKAGES:
        return f"{code} {__version__}"
    return f"{PACKAGES[code]} {version(PACKAGES[code])}"
