"""Membranes that OpenMM ships, with a force field and its usual cutoff."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from openmm import app

DATA = Path(app.__file__).parent / "data"

BILAYERS = ("DLPC", "DLPE", "DMPC", "DOPC", "DPPC", "POPC", "POPE")
"""Bilayers in water, files in :data:`DATA`."""


@dataclass(frozen=True)
class Preset:
    """A structure with force field and cutoff.

    Attributes:
        structure: a bilayer in the xy plane, with its box.
        forcefield: OpenMM's files.
        cutoff: nm.
        switch: switching distance of the Lennard-Jones interaction, nm; None if it is truncated.
    """

    structure: Path
    forcefield: tuple[str, ...]
    cutoff: float
    switch: float | None = None

    def arguments(self, args: argparse.Namespace) -> argparse.Namespace:
        """Return the arguments of :func:`fmm_openmm.cli.inputs.load` for this structure;
        ``--cutoff`` and ``--switch`` of the command line take precedence."""
        numbers = {"cutoff": self.cutoff, "switch": self.switch}
        numbers |= {
            name: getattr(args, name) for name in numbers if getattr(args, name) is not None
        }
        files = {"files": [str(self.structure)], "forcefield": list(self.forcefield)}
        return argparse.Namespace(**vars(args) | files | numbers)


FORCE_FIELDS: dict[str, tuple[tuple[str, str], float, float | None]] = {
    "": (("amber14-all.xml", "amber14/tip3p.xml"), 0.9, None),
    "-opc": (("amber14-all.xml", "amber14/opc.xml"), 0.9, None),
    "-charmm36": (("charmm36.xml", "charmm36/water.xml"), 1.2, 1.0),
}
"""Force field, cutoff and switching distance by the suffix of the preset: Lipid17 in TIP3P and in
OPC water, and CHARMM36."""

PRESETS = {
    bilayer.lower() + ending: Preset(DATA / f"{bilayer}.pdb", *chosen)
    for ending, chosen in FORCE_FIELDS.items()
    for bilayer in BILAYERS
}
