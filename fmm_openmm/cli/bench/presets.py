"""Membranes that OpenMM ships, each with a force field and the cutoff that is usual with it."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from openmm import app

DATA = Path(app.__file__).parent / "data"

BILAYERS = ("DLPC", "DLPE", "DMPC", "DOPC", "DPPC", "POPC", "POPE")
"""Bilayers in water, files in :data:`DATA`."""


@dataclass(frozen=True)
class Preset:
    """A structure and how to read it.

    Attributes:
        structure: a bilayer in the xy plane, with its box.
        forcefield: OpenMM's files.
        cutoff: nm.
        switch: where the Lennard-Jones interaction begins to be switched off, nm; None if it is
            truncated.
    """

    structure: Path
    forcefield: tuple[str, ...]
    cutoff: float
    switch: float | None = None

    def arguments(self, args: argparse.Namespace) -> argparse.Namespace:
        """The command line with this structure, for :func:`fmm_openmm.cli.inputs.load`. Its
        ``--cutoff`` and ``--switch`` are kept."""
        numbers = {"cutoff": self.cutoff, "switch": self.switch}
        numbers |= {
            name: getattr(args, name) for name in numbers if getattr(args, name) is not None
        }
        files = {"files": [str(self.structure)], "forcefield": list(self.forcefield)}
        return argparse.Namespace(**vars(args) | files | numbers)


FORCE_FIELDS = {
    "": (("amber14-all.xml", "amber14/tip3p.xml"), 0.9),
    "-charmm36": (("charmm36.xml", "charmm36/water.xml"), 1.2, 1.0),
}
"""By what their presets' names end with: Lipid17, and CHARMM36."""

PRESETS = {
    bilayer.lower() + ending: Preset(DATA / f"{bilayer}.pdb", *chosen)
    for ending, chosen in FORCE_FIELDS.items()
    for bilayer in BILAYERS
}
