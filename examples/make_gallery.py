"""Run the examples in full and store what they print and draw for the gallery of the documentation.

    python examples/make_gallery.py [NAME ...]

All examples, or those named, such as ``04_npt``; each takes minutes. Results go to docs/gallery,
from which the documentation is built: commit them.
"""

import datetime
import json
import subprocess
import sys
from pathlib import Path

from fmm_openmm.bench.timing import hardware
from fmm_openmm.cli.info import versions

EXAMPLES = Path(__file__).parent
GALLERY = EXAMPLES.parent / "docs" / "gallery"


def run(script: Path) -> dict:
    """Run one example, which leaves its picture in the gallery. Returns the lines that it printed,
    the versions, the hardware and the date."""
    done = subprocess.run(
        [sys.executable, str(script), "--output", str(GALLERY)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [row for row in done.stdout.splitlines() if not row.startswith("Picture: ")]
    return {
        "output": "\n".join(lines).strip().splitlines(),
        "versions": {name: versions()[name] for name in ("fmm_openmm", "OpenMM")},
        "hardware": hardware(),
        "date": datetime.date.today().isoformat(),
    }


def main(names: list[str]) -> None:
    scripts = {path.stem: path for path in sorted(EXAMPLES.glob("[0-9]*.py"))}
    GALLERY.mkdir(exist_ok=True)
    for name in names or scripts:
        print(name, flush=True)
        result = json.dumps(run(scripts[name]), indent=1, ensure_ascii=False)
        (GALLERY / f"{name}.json").write_text(f"{result}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
