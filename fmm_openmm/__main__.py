"""``python -m fmm_openmm``: the command line."""

import sys

from fmm_openmm.cli import main

if __name__ == "__main__":
    sys.exit(main())
