"""``python -m fmm_openmm`` and ``fmm-openmm``: the command line, which is imported here, so that
Ctrl-C while it is ends it without a traceback."""

import os
import sys
from contextlib import suppress


def main() -> int:
    """Run one command and return the exit code."""
    try:
        from fmm_openmm.cli import main
    except KeyboardInterrupt:
        return 130
    with suppress(OSError, AttributeError):  # of a process without stdout or stderr
        _reserve_stdout()
    return main()


def _reserve_stdout() -> None:
    """Reserve stdout for the results: what libraries in C print there, as MDTraj's reader of DCD
    files does, goes to stderr from now on."""
    old, number = sys.stdout, sys.stdout.fileno()
    by_lines = old.line_buffering or getattr(old, "write_through", False)  # of python -u
    sys.stdout = open(os.dup(number), "w", 1 if by_lines else -1, old.encoding, old.errors)
    os.dup2(sys.stderr.fileno(), number)


if __name__ == "__main__":
    sys.exit(main())
