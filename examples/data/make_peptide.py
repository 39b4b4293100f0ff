"""Makes peptide.pdb: the helix ACE-ALA-LYS-ALA-GLU-LYS-LYS-NME, net charge +2, from ideal internal
coordinates.

Run it in this folder. Heavy atoms are placed one after the other from (bond, angle, dihedral)
tables, OpenMM's Modeller adds the hydrogens, and a minimisation with Amber14 in vacuum settles
them.
"""

import random
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit

PHI, PSI, OMEGA = -62.0, -43.0, 180.0

# atom: three placed atoms, bond (nm), angle and dihedral (degrees).
# A leading "-" is the residue before.
BACKBONE = {
    "N": ("-N", "-CA", "-C", 0.1335, 116.6, PSI),
    "CA": ("-CA", "-C", "N", 0.1449, 121.9, OMEGA),
    "C": ("-C", "N", "CA", 0.1522, 111.0, PHI),
    "O": ("N", "CA", "C", 0.1229, 120.5, PSI + 180.0),
    "CB": ("-C", "N", "CA", 0.1526, 110.1, PHI - 122.0),
}
CHAIN = {
    "CG": ("N", "CA", "CB", 0.1526, 113.0, -65.0),
    "CD": ("CA", "CB", "CG", 0.1526, 112.0, 180.0),
}
SIDE_CHAINS = {
    "ALA": {},
    "LYS": CHAIN
    | {
        "CE": ("CB", "CG", "CD", 0.1526, 112.0, 180.0),
        "NZ": ("CG", "CD", "CE", 0.1471, 111.0, 180.0),
    },
    "GLU": CHAIN
    | {
        "OE1": ("CB", "CG", "CD", 0.1250, 118.0, 0.0),
        "OE2": ("CB", "CG", "CD", 0.1250, 118.0, 180.0),
    },
}
CAP = {  # ACE, its CH3 in the place of CA; the first three atoms are set, not placed
    "O": ("-N", "CH3", "C", 0.1229, 120.5, PSI + 180.0),
}
SEQUENCE = ["ACE", "ALA", "LYS", "ALA", "GLU", "LYS", "LYS", "NME"]


def place(a, b, c, bond, angle, dihedral):
    """The point at `bond` from c, `angle` at c and `dihedral` about b-c."""
    angle, dihedral = np.radians(angle), np.radians(dihedral)
    along = (c - b) / np.linalg.norm(c - b)
    normal = np.cross(b - a, along)
    normal /= np.linalg.norm(normal)
    around = np.cos(dihedral) * np.cross(normal, along) + np.sin(dihedral) * normal
    return c + bond * (np.sin(angle) * around - np.cos(angle) * along)


def residue(name, before):
    """Heavy atoms of one residue, placed behind the atoms of the residue `before`."""
    if name == "ACE":
        frame = {
            "-N": np.array([0.05, 0.14, 0.0]),
            "CH3": np.zeros(3),
            "C": np.array([0.1522, 0.0, 0.0]),
        }
        table = CAP
    else:
        frame = {"-" + atom: x for atom, x in before.items()}
        rows = (
            {"N": BACKBONE["N"], "C": BACKBONE["CA"]}
            if name == "NME"
            else BACKBONE | SIDE_CHAINS[name]
        )
        table = rows
    for atom, (a, b, c, *internal) in table.items():
        frame[atom] = place(frame[a], frame[b], frame[c], *internal)
    return frame


def heavy_atoms():
    """Topology and positions (nm) of the peptide without hydrogens."""
    topology, positions, before = app.Topology(), [], {}
    chain = topology.addChain()
    for name in SEQUENCE:
        frame = residue(name, before)
        atoms = topology.addResidue(name, chain)
        for atom, x in frame.items():
            if not atom.startswith("-"):
                topology.addAtom(atom, app.Element.getBySymbol(atom[0]), atoms)
                positions.append(x)
        before = {"N": frame["-N"], "CA": frame["CH3"], "C": frame["C"]} if name == "ACE" else frame
    topology.createStandardBonds()
    return topology, np.array(positions)


def main():
    random.seed(1)
    topology, positions = heavy_atoms()
    modeller = app.Modeller(topology, positions * unit.nanometer)
    forcefield = app.ForceField("amber14-all.xml")
    modeller.addHydrogens(forcefield, pH=7.0)
    system = forcefield.createSystem(modeller.topology)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatform("Reference")
    )
    context.setPositions(modeller.positions)
    openmm.LocalEnergyMinimizer.minimize(context, 100.0, 200)
    minimised = context.getState(positions=True).getPositions()
    with open(Path(__file__).with_name("peptide.pdb"), "w") as file:
        app.PDBFile.writeFile(modeller.topology, minimised, file)


if __name__ == "__main__":
    main()
