"""Versions, platforms and devices, and what fmm_openmm would use here.

With files: the definitions of their FMMForces. No code in a file is executed.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from xml.parsers import expat

import numpy as np
import openmm

from fmm_openmm import CoulombSolver, UnsupportedError, __version__
from fmm_openmm.cli.options import platform_names
from fmm_openmm.cli.readers import reading
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.integration.definition import size_of
from fmm_openmm.integration.identity import content_in
from fmm_openmm.integration.native import plugin
from fmm_openmm.openmp import get_num_threads

OPTIONAL = ("cupy-cuda12x", "cupy-cuda13x", "matplotlib", "mdtraj", "ParmEd", "MDAnalysis", "ase")
FMM_FORCE = "FMMForce"
BACKENDS = ("reference", "cpu", "cuda")


EXAMPLE = "fmm-openmm info"


def add_arguments(parser) -> None:
    """Add the arguments of the command: files and ``--plot``."""
    parser.add_argument(
        "files", nargs="*", metavar="SYSTEM.xml", help="show the FMMForces of these files instead"
    )
    add_plot_argument(parser)


def run(args, terminal) -> Outcome:
    """Print the definitions in the files, or the state of this installation."""
    drawing = figure(args.plot)
    outcome = (
        _describe_files(args.files, terminal) if args.files else _describe_installation(terminal)
    )
    if drawing:
        draw(drawing, outcome.result)
        drawing.savefig(args.plot)
    return outcome


def draw(drawing, result: dict) -> None:
    """Plot the size of every FMMForce in the files or, without files, the speed of every
    platform."""
    axes = drawing.add_subplot()
    if "files" in result:
        forces = [
            (f"{file}\n{force['name']}", force)
            for file, found in result["files"].items()
            for force in found
            if force["kind"] == FMM_FORCE
        ]
        for shift, name in ((-0.2, "particles"), (0.2, "exclusions")):
            places = np.arange(len(forces)) + shift
            axes.barh(places, [force[name] for _, force in forces], 0.4, label=name)
        axes.set_yticks(range(len(forces)), [name for name, _ in forces])
        axes.set_xlabel("number")
        axes.legend()
    else:
        platforms = result["platforms"]
        names = [f"{entry['name']}\n{entry['device'] or 'no device'}" for entry in platforms]
        axes.barh(names, [entry["speed"] for entry in platforms])
        axes.set_xlabel("speed, relative to the Reference platform, as OpenMM estimates it")


def _describe_files(files, terminal) -> Outcome:
    result = {"files": {file: describe_file(file) for file in files}}
    for file, forces in result["files"].items():
        own = sum(force["kind"] == FMM_FORCE for force in forces)
        terminal.say(f"{file}: {own or 'no'} FMMForce{'s' if own > 1 else ''}")
        for force in forces:
            terminal.pairs([(name, str(value)) for name, value in force.items()])
        if own < len(forces):
            terminal.say(
                f"{file} holds a PythonForce that is not of fmm_openmm: deserialising the file "
                "runs its code"
            )
    return Outcome(result)


def describe_file(path: str) -> list[dict]:
    """List the PythonForces of an XML file, with the definitions of FMMForces.

    No code in the file is executed, no element tree is built, and tables are expanded block by
    block.

    Raises:
        OSError, ValueError: the file cannot be read, or was written by a newer version.
    """
    found: list[dict] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: (
        found.append(attributes) if attributes.get("type") == "PythonForce" else None
    )
    # OpenMM writes none of these, and its parser may see forces where this one sees none
    parser.StartDoctypeDeclHandler = _refuse("a document type")
    parser.CommentHandler = _refuse("a comment")
    parser.StartCdataSectionHandler = _refuse("a CDATA section")
    parser.ProcessingInstructionHandler = _refuse("a processing instruction")
    with open(path, "rb") as file, reading(path):
        parser.ParseFile(file)
        return [_described(attributes, content_in(attributes)) for attributes in found]


def _refuse(what: str):
    def refuse(*_):
        raise ValueError(f"{what}, which OpenMM does not write")

    return refuse


def _described(attributes: dict, content: dict | None) -> dict:
    names = {"name": attributes.get("name"), "force_group": int(attributes.get("forceGroup", 0))}
    if content is None:
        return {"kind": "foreign PythonForce", **names}
    given = {name: value for name, value in content["options"].items() if value is not None}
    particles, net_charge = size_of(content, "charges")
    return {
        "kind": FMM_FORCE,
        **names,
        "format": content["format"],
        **given,
        "particles": particles,
        "net_charge": round(net_charge, 9),
        "exclusions": size_of(content, "exclusions")[0],
        "exclusions_periodic": content["exclusions_periodic"],
        "boundary": content["boundary"],
        "global_parameters": dict(content["global_parameters"]),
        "parameter_offsets": size_of(content, "offset_scales")[0],
        "made_by_use_fmm": content["original"] is not None,
    }


def _describe_installation(terminal) -> Outcome:
    with terminal.progress("looking"):
        result: dict[str, Any] = {
            "versions": versions(),
            "optional_packages": {name: _installed(name) for name in OPTIONAL},
            "threads": get_num_threads(),
            "platforms": [describe_platform(name) for name in platform_names()],
            "platform_load_failures": list(openmm.Platform.getPluginLoadFailures()),
            "backends": {
                name: reason or "available" for name, reason in map(describe_backend, BACKENDS)
            },
            "backend": CoulombSolver([1.0], np.eye(3)).backend,
            "bridge": describe_bridge(),
        }
    terminal.pairs([(name, text) for name, text in result["versions"].items()], title="Versions")
    terminal.say()
    terminal.table(
        ("OpenMM platform", "speed", "device"),
        [
            (entry["name"], f"{entry['speed']:g}", entry["device"] or entry["error"])
            for entry in result["platforms"]
        ],
    )
    for failure in result["platform_load_failures"]:
        terminal.say(f"not loaded: {failure}")
    terminal.say()
    terminal.pairs(
        result["backends"].items(), title=f"Solver backends ('auto' is {result['backend']!r})"
    )
    terminal.say()
    bridge = result["bridge"]
    terminal.say(f"Bridge to OpenMM: {bridge['name']}, since {bridge['reason']}")
    terminal.say(f"Threads: {result['threads']}")
    return Outcome(result)


def versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the required packages."""
    needed = {name: _installed(name) or "not installed" for name in ("NumPy", "SciPy", "Numba")}
    return {
        "fmm_openmm": __version__,
        "OpenMM": openmm.Platform.getOpenMMVersion(),
        **needed,
        "Python": platform.python_version(),
        "machine": platform.platform(),
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def describe_platform(name: str) -> dict:
    """Return name, relative speed and device of a platform, or the error if it has no device."""
    entry = openmm.Platform.getPlatformByName(name)
    found = {"name": name, "speed": entry.getSpeed(), "device": None, "error": None}
    system = openmm.System()
    system.addParticle(1.0)
    try:
        context = openmm.Context(system, openmm.VerletIntegrator(0.001), entry)
        properties = entry.getPropertyNames()
        if "DeviceName" in properties:
            found["device"] = entry.getPropertyValue(context, "DeviceName")
        elif "Threads" in properties:
            found["device"] = f"{entry.getPropertyValue(context, 'Threads')} threads"
        else:
            found["device"] = "one thread"
    except openmm.OpenMMException as error:
        found["error"] = str(error)
    return found


def describe_backend(name: str) -> tuple[str, str | None]:
    """Return the name of a solver backend, and the reason if it cannot be used, else None."""
    try:
        CoulombSolver([1.0], np.eye(3), backend=name)
    except UnsupportedError as error:
        return name, str(error)
    return name, None


def describe_bridge() -> dict[str, str]:
    """Return the bridge that ``bridge="auto"`` selects, and the reason."""
    found = plugin.find()
    if isinstance(found, str):
        return {"name": "host", "reason": found}
    return {
        "name": "native",
        "reason": f"the native plugin serves Contexts on the CUDA platform: {found.origin}",
    }
