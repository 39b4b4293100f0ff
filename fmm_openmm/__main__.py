"""``python -m fmm_openmm`` and ``fmm-openmm``: the command line, which is imported here, so that
Ctrl-C while it is ends it without a traceback."""

import sys


def main() -> int:
    """Run one command and return the exit code."""
    try:
        from fmm_openmm.cli import main
    except KeyboardInterrupt:
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(main())
