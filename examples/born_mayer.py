"""The Born-Mayer repulsion of ions as a calculator of ASE, for the examples."""

import numpy as np
from ase import units
from ase.calculators.calculator import Calculator, all_changes
from ase.neighborlist import neighbor_list
from ase.stress import full_3x3_to_voigt_6_stress
from scipy.optimize import brentq

MADELUNG = 1.747564594633182  # of NaCl, referred to the nearest distance


class BornMayer(Calculator):
    r"""Repulsion of neighbouring cations and anions:

    .. math:: U = \sum_{i \in cations} \sum_{j \in anions} \lambda \exp(-r_{ij} / \rho)

    for r below ``cutoff``. The defaults are those of NaCl (C. Kittel, *Introduction to Solid State
    Physics*, chapter 3: 6 lambda = 1.05e-8 erg, rho = 0.321 A).

    Args:
        strength: lambda, eV.
        range: rho, A.
        cutoff: between the first and the second shell of unlike ions, A.
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012

    def __init__(self, strength=1.05e-15 * units.J / 6, range=0.321, cutoff=3.9):
        super().__init__()
        self.strength, self.range, self.cutoff = strength, range, cutoff

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        i, j, d, displacement = neighbor_list("ijdD", atoms, self.cutoff)
        unlike = atoms.numbers[i] != atoms.numbers[j]
        i, j, d, displacement = i[unlike], j[unlike], d[unlike], displacement[unlike]
        energies = self.strength * np.exp(-d / self.range)  # each pair twice
        pulls = -(energies / (self.range * d))[:, None] * displacement
        forces = np.zeros((len(atoms), 3))
        np.add.at(forces, i, pulls)
        energy = energies.sum() / 2
        self.results = {"energy": energy, "free_energy": energy, "forces": forces}
        if atoms.cell.rank == 3:
            stress = displacement.T @ pulls / 2 / atoms.get_volume()
            self.results["stress"] = full_3x3_to_voigt_6_stress(stress)

    def lattice_constant(self):
        """Edge of the cube of the salt in which attraction and repulsion balance, A."""

        def slope(r):  # of the energy of a pair of ions
            repulsion = 6 * self.strength / self.range * np.exp(-r / self.range)
            return MADELUNG * units.Hartree * units.Bohr / r**2 - repulsion

        return 2 * brentq(slope, 2.0, self.cutoff, xtol=1e-12)
