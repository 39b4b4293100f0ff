"""The version of the package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("fmm_openmm")
except PackageNotFoundError:  # imported from a source tree that is not installed
    VERSION = "0+unknown"
