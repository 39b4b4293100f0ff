"""The user's cache folder: what it costs time to find or to build, and may be deleted at any time."""

import os
import sys
from pathlib import Path

ENVIRONMENT = "FMM_OPENMM_CACHE"
OFF = "off"


def cache_folder() -> Path | None:
    """The folder that ``FMM_OPENMM_CACHE`` names, or the platform's usual one; None if that is "off", or nowhere."""
    folder = os.environ.get(ENVIRONMENT)
    if folder:
        return None if folder == OFF else Path(folder)
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(base) / "fmm_openmm"
