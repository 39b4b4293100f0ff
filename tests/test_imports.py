"""Imports flow one way: the rule of docs/development/architecture.md, read from the source with
``ast``, nothing imported."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = "fmm_openmm"
SOURCE = Path(find_spec(PACKAGE).origin).parent
ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "development" / "architecture.md"

# Each layer may import the layers before it and itself. A set in a row shares the row's rank,
# as in the document.
BASE = [
    "units",
    "errors",
    "version",
    "cache",
    "openmp",
    "implementations",
    "arrays",
    "display",
    "progress",
]
SHAPE = [
    *BASE,
    "checks",
    "options",
    "boundary",
    "placed_term",
    "dipole_term",
    "neutralization",
    "box",
    "octree",
    "specification",
]
DATA = [*SHAPE, "expansions"]
PIPELINE = [*DATA, "stages", "driver", "backends"]
SOLVER = [*PIPELINE, "planning", "sums", "results", "charge_sets", "evaluation", "solver"]
OPENMM = [*SOLVER, "oracle", "convert", "integration"]
MAY_IMPORT = {
    "units": [],
    "errors": [],
    "version": [],
    "display": [],
    "progress": [],
    "cache": ["errors"],
    "openmp": [],
    "implementations": ["errors"],
    "arrays": [],
    "results": ["units", "arrays", "boundary"],
    "charge_sets": ["units", "arrays", "checks", "results", "stages"],
    "checks": BASE,
    "options": [*BASE, "checks"],
    "boundary": ["checks", "errors"],
    "placed_term": ["arrays"],
    "dipole_term": [*BASE, "checks", "boundary", "placed_term"],
    "neutralization": [*BASE, "checks", "boundary", "placed_term"],
    "box": [*BASE, "checks", "boundary"],
    "octree": ["box"],
    "specification": ["box"],
    "expansions": SHAPE,
    "driver": [],
    "stages": [*DATA, "driver"],
    "backends": PIPELINE,
    "oracle": SHAPE,
    "planning": DATA,
    "sums": [*DATA, "planning"],
    "evaluation": [*PIPELINE, "planning", "sums", "results", "charge_sets"],
    "solver": [*PIPELINE, "planning", "sums", "results", "charge_sets", "evaluation"],
    "distributed": SOLVER,
    "convert": SOLVER,
    "integration": [*SOLVER, "oracle", "convert"],
    "mdanalysis": OPENMM,
    "torch": [*SOLVER, "convert", "oriented"],
    "torchsim": [*SOLVER, "convert", "torch"],
    "metatomic": [*SOLVER, "convert", "torch"],
    "oriented": [*SOLVER, "convert"],
    "ase": [*SOLVER, "convert", "oriented"],
    "ipi": [*SOLVER, "convert", "oriented"],
    "lammps": [*SOLVER, "convert", "oriented", "distributed"],
    "kernels": [],
    "bench": [*OPENMM, "oriented", "torch", "distributed"],
    "literature": [*OPENMM, "bench"],
    "cli": [*OPENMM, "bench", "literature", "__init__"],
    "__main__": ["cli"],
    "__init__": OPENMM,
}

BACKENDS = {"reference", "cpu", "cuda"}
"""Folders of ``backends/``: none imports another."""

# Outside packages that only some places may import; the place is a path inside the package.
OUTSIDE = {
    "openmm": ["convert", "integration", "bench", "cli"],
    "cupy": ["backends/cuda", "bench", "literature"],
    "numba": ["openmp"],
    "mdtraj": ["convert"],
    "parmed": ["convert"],
    "MDAnalysis": ["convert", "mdanalysis"],
    "ase": ["convert", "ase"],
    "ipi": ["ipi"],
    "torch": ["torch", "torchsim", "metatomic", "bench/torch"],
    "torchpme": ["bench/torch"],
    "torch_sim": ["torchsim"],
    "metatomic": ["metatomic"],
    "metatensor": ["metatomic"],
    "lammps": [],
    "mpi4py": ["cli/bench/distributed"],
    "rich": ["cli", "bench", "progress"],
    "matplotlib": ["cli", "bench", "integration/report"],
}


def imported_names(source, module, is_package=False):
    """The full dotted names that ``source``, the text of ``module``, imports, wherever in the
    file they stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                keep = len(module.split(".")) - node.level + is_package
                prefix = module.split(".")[:keep]
            else:
                prefix = []
            base = ".".join(prefix + ([node.module] if node.module else []))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def faults(source, path):
    """Imports in ``source``, the text of the file at ``path`` (relative to the package), that break
    the rule."""
    parts = path.with_suffix("").parts
    module = ".".join((PACKAGE, *parts)).removesuffix(".__init__")
    component = parts[0]
    place = path.as_posix()
    if component not in MAY_IMPORT:
        return [f"{place}: `{component}` has no row in MAY_IMPORT (and {ARCHITECTURE.name})"]
    found = []
    for name in imported_names(source, module, is_package=parts[-1] == "__init__"):
        top, *rest = name.split(".")
        if top == PACKAGE:
            target = rest[0] if rest and rest[0] in MAY_IMPORT else "__init__"
            another = (
                component == target == "backends"
                and parts[1] in BACKENDS
                and {*rest[1:2]} & BACKENDS - {parts[1]}
            )
            if another or target not in (component, *MAY_IMPORT[component]):
                found.append(f"{place}: imports {name}")
        elif top in OUTSIDE:
            allowed = OUTSIDE[top]
            if not any(
                place == f"{prefix}.py" or place.startswith(f"{prefix}/") for prefix in allowed
            ):
                found.append(f"{place}: imports {top}, which only {', '.join(allowed)} may")
    return found


def modules():
    return sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_flow_one_way(path):
    assert faults((SOURCE / path).read_text(encoding="utf-8"), path) == []


def circle(sources):
    """Modules that import each other in a circle, wherever in a file the imports stand; empty if
    there is none.

    Args:
        sources: of each module its full dotted name, its text and whether it is a package.
    """
    known = {name for name, *_ in sources}
    imports = {
        name: {
            target if target in known else target.rpartition(".")[0]
            for target in imported_names(source, name, is_package)
        }
        & known
        for name, source, is_package in sources
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other():
    sources = []
    for path in modules():
        name = ".".join((PACKAGE, *path.with_suffix("").parts)).removesuffix(".__init__")
        text = (SOURCE / path).read_text(encoding="utf-8")
        sources.append((name, text, path.stem == "__init__"))
    assert circle(sources) == []


def test_a_circle_is_found():
    sources = [
        ("fmm_openmm.a", "from fmm_openmm import b", False),
        ("fmm_openmm.b", "def f():\n    from fmm_openmm.c import g", False),
        ("fmm_openmm.c", "from . import a", False),
    ]
    assert {*circle(sources)} == {"fmm_openmm.a", "fmm_openmm.b", "fmm_openmm.c"}
    assert circle(sources[:2]) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("solver.py", "from .oracle import ewald", "imports fmm_openmm.oracle.ewald"),
        ("solver.py", "from . import oracle", "imports fmm_openmm.oracle"),
        (
            "backends/cpu/p2p.py",
            "from ...solver import CoulombSolver",
            "imports fmm_openmm.solver.CoulombSolver",
        ),
        (
            "backends/__init__.py",
            "from ..convert import ChargeSystem",
            "imports fmm_openmm.convert.ChargeSystem",
        ),
        (
            "backends/cuda/direct.py",
            "from ..cpu.sort import home",
            "imports fmm_openmm.backends.cpu.sort.home",
        ),
        ("units.py", "def f():\n    import fmm_openmm.box", "imports fmm_openmm.box"),
        ("box/grid.py", "from fmm_openmm import CoulombSolver", "imports fmm_openmm.CoulombSolver"),
        ("backends/cpu/p2p.py", "import cupy as cp", "only backends/cuda, bench, literature may"),
        ("expansions/harmonics.py", "from numba import njit", "which only openmp may"),
        ("oracle/ewald.py", "import openmm.unit", "only convert, integration, bench, cli may"),
        ("stray.py", "", "has no row"),
        (
            "backends/__init__.py",
            "from fmm_openmm.literature import treecode",
            "imports fmm_openmm.literature.treecode",
        ),
    ],
)
def test_the_rule_catches(path, source, complaint):
    found = faults(source, Path(path))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    "path",
    [*sorted((SOURCE / "backends" / "cpu").glob("*.py")), SOURCE / "literature/treecode/cpu.py"],
    ids=lambda path: path.stem,
)
def test_kernels_read_no_constant_of_another_module(path):
    """Numba keeps what it has compiled when such a constant changes: see
    ``backends/cpu/threads.py``, itself the exception."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imports = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and not node.module.endswith(".threads")
    ]
    constants = {alias.name for node in imports for alias in node.names if alias.name.isupper()}
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        if {"kernel", "serial", "inline"} & {
            name.id for name in function.decorator_list if isinstance(name, ast.Name)
        }:
            assert not constants & {
                name.id for name in ast.walk(function) if isinstance(name, ast.Name)
            }, function.name


@pytest.mark.slow
def test_what_a_user_may_not_need_is_imported_when_it_is_used():
    """Other programs, and parts of SciPy that take a tenth of the time to import the package."""
    names = {"ase", "ipi", "lammps", "scipy.sparse", "scipy.spatial"}
    script = (
        "import sys, fmm_openmm.lammps; fmm_openmm.CoulombSolver, fmm_openmm.use_fmm\n"
        f"sys.exit(repr({names!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == "set()\n"


@pytest.mark.slow
def test_the_literature_is_imported_when_it_is_asked_for():
    """The product knows it as text in one file; the command line imports it within functions."""
    product = [path for path in modules() if path.parts[0] != "literature"]
    named = {
        path.as_posix()
        for path in product
        for node in ast.walk(ast.parse((SOURCE / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and re.match(r"(fmm_openmm\.)?literature\.\w", str(node.value))
    }
    assert named == {"implementations.py"}
    for path in product:
        tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        at_once = "\n".join(
            ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
        )
        assert "fmm_openmm.literature" not in at_once, path


def test_the_document_names_every_module():
    text = ARCHITECTURE.read_text(encoding="utf-8")
    for name in MAY_IMPORT.keys() - {"kernels", "__init__", "__main__"}:
        assert f"`{name}.py`" in text or f"`{name}/`" in text, name


def test_the_document_names_every_kernel():
    rows = ARCHITECTURE.read_text(encoding="utf-8").split("## The kernels")[1]
    assert set(re.findall(r"`(\w+)`", rows)) == {
        path.stem for path in (ROOT / "kernels").rglob("*.cu")
    }


def test_the_rule_reaches_the_package():
    assert {"units.py", "solver.py", "convert/storage.py"} <= {
        path.as_posix() for path in modules()
    }


def test_the_rule_allows():
    assert (
        faults(
            "from ..solver import CoulombSolver\nimport openmm\nimport numpy",
            Path("convert/system.py"),
        )
        == []
    )
    assert (
        faults(
            "from .harmonics import regular\nfrom ..units import PI",
            Path("expansions/splitting.py"),
        )
        == []
    )


@pytest.mark.slow
def test_no_test_module_imports_another():
    """Helpers that several tests share are in modules of their own."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                named = {*node.module.split("."), *(alias.name for alias in node.names)}
                assert not any(re.match("test_|conftest$", name) for name in named), path
