"""The command line: exit codes, JSON, every kind of input, and errors in one line."""

import base64
import csv
import gzip
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app, unit
from rich.console import Console

import fmm_openmm as fmm
from fmm_openmm import cli, progress
from fmm_openmm.cli import bench, check, info, main, run, terminal, validate
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from tests.convert.small_water import BOX, FORCE_FIELD, small_water


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the water box in every format."""
    path = tmp_path_factory.mktemp("inputs")
    topology, system, positions = small_water()
    quantity = positions * unit.nanometer
    for name, writer in (("water.pdb", app.PDBFile), ("water.cif", app.PDBxFile)):
        with open(path / name, "w") as file:
            writer.writeFile(topology, quantity, file)
    (path / "water.cif.gz").write_bytes(gzip.compress((path / "water.cif").read_bytes()))
    (path / "system.xml").write_text(openmm.XmlSerializer.serialize(system))
    fmm.use_fmm(system)
    (path / "converted.xml").write_text(openmm.XmlSerializer.serialize(system))
    fmm.restore_pme(system)
    try:
        import parmed
    except ImportError:
        return path
    structure = parmed.openmm.load_topology(topology, system, quantity)
    for name in ("water.prmtop", "water.rst7", "water.top", "water.gro", "water.psf", "water.crd"):
        structure.save(str(path / name))
    structure.save(str(path / "amber.top"), format="amber")
    parameters = parmed.charmm.CharmmParameterSet.from_structure(structure)
    parameters.write(par=str(path / "water.prm"), top=str(path / "water.rtf"))
    return path


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def succeed(capsys):
    """Runs a command that must succeed; returns what it prints,
    parsed where ``--json`` is given."""

    def command(*argv, code=0):
        assert main(list(argv)) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        return json.loads(captured.out) if "--json" in argv else captured.out

    return command


@pytest.fixture
def fail(capsys):
    """Runs a command that must fail with code 2; returns the one line on stderr."""

    def command(*argv):
        assert main(list(argv)) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("fmm-openmm: ")
        return captured.err

    return command


WATER = ("water.pdb", "--forcefield", FORCE_FIELD)


# usage


@pytest.mark.slow
def test_module_and_exit_code():
    done = subprocess.run(
        [sys.executable, "-m", "fmm_openmm", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"fmm_openmm {fmm.__version__}\n")
    done = subprocess.run(
        [sys.executable, "-m", "fmm_openmm", "convert"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


BENCHMARKS = [f"bench {name}" for name in bench.BENCHMARKS]


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("command", ["", *cli.COMMANDS, *BENCHMARKS])
def test_help(command, columns, succeed, monkeypatch):
    """Every help text has at most 80 columns and begins with a command that the parser takes."""
    monkeypatch.setenv("COLUMNS", columns)
    text = succeed(*command.split(), "--help")
    usage, _, example = text.partition("\nexample:\n")
    assert f"fmm-openmm {command}".strip() in usage
    assert max(map(len, text.splitlines())) <= 80
    program, *argv = shlex.split(example)
    assert program == "fmm-openmm"
    assert cli.parse(argv).command == argv[0]
    assert " ".join(argv).startswith(command)


@pytest.mark.parametrize(
    "argv",
    [
        ["--forcefield", "a.xml", "b.xml", "water.pdb"],
        ["--box", "2", "2", "2", "water.pdb", "--forcefield", "a.xml", "b.xml"],
        ["--steps", "1e6", "water.pdb", "--forcefield", "a.xml", "b.xml", "--json"],
        ["--json", "water.pdb", "--forcefield", "a.xml", "b.xml"],
    ],
)
def test_options_and_files_in_any_order(argv):
    args = cli.parse(["run", *argv])
    assert (args.files, args.forcefield) == (["water.pdb"], ["a.xml", "b.xml"])
    assert args.box == ([2.0, 2.0, 2.0] if "--box" in argv else None)
    assert args.steps == (1_000_000 if "--steps" in argv else 1000)
    assert args.json is ("--json" in argv)


def test_several_files_among_options():
    args = cli.parse(["run", "a.prmtop", "--steps", "5", "a.rst7", "--seed", "1"])
    assert args.files == ["a.prmtop", "a.rst7"]
    args = cli.parse(["run", "--parameters", "a.prm", "a.top", "a.str", "a.psf", "a.crd"])
    assert (args.parameters, args.files) == (["a.prm", "a.top", "a.str"], ["a.psf", "a.crd"])
    args = cli.parse(["convert", "--box", "1", "2", "3", "a.xml", "a.pdb", "-o", "a.npz"])
    assert (args.box, args.files) == ([1.0, 2.0, 3.0], ["a.xml", "a.pdb"])
    assert cli.parse(["info", "--debug", "a.xml"]).files == ["a.xml"]


@pytest.mark.parametrize("argv", [["check"], ["bench", "nve"]])
def test_json_in_a_file(argv, capsys, monkeypatch, tmp_path):
    """One spelling for all commands; that of benchmarks until now is warned of."""
    outcome = terminal.Outcome({"answer": 42})
    monkeypatch.setattr(cli.COMMANDS[argv[0]], "run", lambda *_: outcome)
    path = tmp_path / "out.json"
    assert main([*argv, f"--json={path}"]) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads(path.read_text()) == outcome.result
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == outcome.result
    path.unlink()
    assert main([*argv, "--json", str(path)]) == (0 if argv[0] == "bench" else 2)
    printed = capsys.readouterr().err
    assert (f"write --json={path} for --json {path}" in printed) is (argv[0] == "bench")
    assert path.exists() is (argv[0] == "bench")
    assert cli.parse(["bench", "--json", "nve"]).json is True


def test_outputs_that_may_not_be_written(fail, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to write run.csv" in fail("run", *WATER, "--log", "run.csv")
    assert "no permission to write out.json" in fail("check", "--json=out.json")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["explode"], "invalid choice: 'explode'"),
        (["info", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["run", *WATER, "--steps", "many"], "invalid int value: 'many'"),
        (["run", *WATER, "--steps", "0"], "--steps must be at least 1, got 0"),
        (
            ["run", *WATER, "--timestep", "2"],
            "--timestep is in ps and must be at most 0.01, got 2: 0.002 is usual",
        ),
        (["run", *WATER, "--temperature", "nan"], "--temperature must be at least 0, got nan"),
        (
            ["run", *WATER, "--trajectory", "out.xyz"],
            "--trajectory must end in .dcd, .xtc, .pdb, .cif, got out.xyz",
        ),
        (["run", *WATER, "--platform", "Abacus"], "--platform must be one of Reference, CPU"),
        (
            ["run", *WATER, "--tolerance", "0"],
            "`tolerance` must lie between 1e-10 and 0.1, got 0.0",
        ),
        (["run", *WATER, "--backend", "gpu"], "invalid choice: 'gpu'"),
        (["run", *WATER, "--plot", "out.doc"], "--plot must name a file ending in"),
        (
            ["validate", *WATER, "--pme-tolerance", "0"],
            "--pme-tolerance must lie between 0 and 1, got 0.0",
        ),
        (["validate", *WATER, "--grid", "0", "4", "4"], "`grid` must be"),
        (["run", "--steps", "5"], "the following arguments are required: FILE"),
        (["check", "water.pdb"], "check takes no FILE, got water.pdb"),
        (["bench", "nve", "water.pdb"], "unrecognized arguments: water.pdb"),
        (["run", *WATER, "--steps", "1.5"], "invalid int value: '1.5'"),
        (["run", *WATER, "--box", "2", "2", "x"], "argument --box: invalid float value: 'x'"),
        (["info", "--json=nowhere/info.json"], "no such folder: nowhere"),
        (["validate", *WATER, "--bridge", "host"], "unrecognized arguments: --bridge host"),
        (["convert", *WATER], "the following arguments are required: -o/--output"),
        (["convert", *WATER, "-o", "water.txt"], "--output must end in .npz, got water.txt"),
        (["convert", *WATER, "-o", "nowhere/water.npz"], "no such folder: nowhere"),
        (["run", *WATER, "--log", "nowhere/run.csv"], "no such folder: nowhere"),
        (["run", *WATER, "--log", "."], "is a folder: ."),
        (["run", *WATER, "--trajectory", "nowhere/run.dcd"], "no such folder: nowhere"),
        (["validate", *WATER, "--plot", "nowhere/errors.png"], "no such folder: nowhere"),
    ],
)
def test_bad_usage(argv, message, fail):
    line = fail(*argv)
    assert any(text in line for text in message.split("|"))


def test_debug_shows_the_traceback():
    with pytest.raises(FileNotFoundError):
        main(["convert", "nothing.pdb", "-o", "x.npz", "--debug"])


def test_interrupt(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "run", interrupted)
    assert main(["check"]) == 130


@pytest.mark.slow
def test_a_run_that_is_interrupted_tells_what_it_has(succeed, monkeypatch, tmp_path):
    """Ctrl-C during the second interval of a hundred; after it the signal acts as before."""
    step, plot, log = app.Simulation.step, tmp_path / "run.png", tmp_path / "run.csv"

    def interrupted(simulation, steps):
        if simulation.currentStep == 30:
            signal.raise_signal(signal.SIGINT)
        step(simulation, steps)

    monkeypatch.setattr(app.Simulation, "step", interrupted)
    usual = signal.getsignal(signal.SIGINT)
    argv = (
        "run",
        *WATER,
        "--steps",
        "2000",
        "--interval",
        "20",
        "--timestep",
        "0.0005",
        "--minimize",
        "10",
    )
    result = succeed(*argv, "--plot", str(plot), "--log", str(log), "--json", code=130)
    assert result["interrupted"]
    assert result["steps"] == 40
    assert result["ms_per_step"] > 0
    assert plot.exists()
    assert log.read_text().splitlines()[-1].startswith("40,")
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.parametrize(
    ("argv", "where", "stage"),
    [
        (["--minimize", "100000"], 5, "while minimising"),
        (["--equilibrate", "2000"], 25, "after 30 of 2000 steps of equilibration"),
        (["--interval", "2000"], 25, "after 30 of 2000 steps"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_at_any_stage(succeed, monkeypatch, argv, where, stage, times):
    """Pressed in an evaluation, and again while its effect is being sampled: the results are
    those that there are."""
    compute, sample, pressed = fmm.CoulombSolver.compute, run.sample, []
    usual, evaluations = signal.getsignal(signal.SIGINT), []

    def press():
        pressed.append(True)
        signal.raise_signal(signal.SIGINT)

    def computed(solver, *args):
        evaluations.append(args)
        if len(evaluations) >= where and not pressed:
            press()
        return compute(solver, *args)

    def sampled(*args):
        if 0 < len(pressed) < times:
            press()
        return sample(*args)

    monkeypatch.setattr(fmm.CoulombSolver, "compute", computed)
    monkeypatch.setattr(run, "sample", sampled)
    argv = ("run", "system.xml", "water.pdb", "--timestep", "0.0005", "--steps", "2000", *argv)
    assert f"Interrupted {stage}" in succeed(*argv, code=130)
    assert len(pressed) == times
    evaluations.clear(), pressed.clear()
    result = succeed(*argv, "--json", code=130)
    assert result["interrupted"] and len(pressed) == times
    assert np.isfinite(result["final_total_energy"])
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_imported():
    """An interrupt prints no traceback, as fmm_openmm imports nothing before it is needed."""
    code = (
        "import signal, sys\n"
        "import fmm_openmm.__main__\n"
        "assert not {'numpy', 'openmm', 'fmm_openmm.solver'} & set(sys.modules)\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'fmm_openmm.cli.check': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(fmm_openmm.__main__.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_no_progress_without_a_terminal(monkeypatch, capsys):
    """Nothing is printed, not even the empty line with which some versions of rich end a hidden
    bar."""
    monkeypatch.setattr(progress, "Progress", None)
    with terminal.Terminal().progress("waiting", total=2) as advance:
        advance()
        advance(0, description="still waiting")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("options", [[], ["--no-progress"]])
def test_progress_can_be_switched_off(options, monkeypatch, capsys, tmp_path):
    """``--no-progress`` hides the bar in a terminal."""
    monkeypatch.setattr(progress, "Console", partial(Console, force_terminal=True))
    assert main(["convert", *WATER, "-o", str(tmp_path / "out.npz"), *options]) == 0
    assert ("reading" in capsys.readouterr().err) is not options


@pytest.mark.parametrize("shown", [True, False])
def test_progress_of_validate(shown, monkeypatch, capsys):
    monkeypatch.setattr(progress, "Console", partial(Console, force_terminal=True))
    _, system, positions = small_water()
    fmm.validate(system, positions, tolerance=1e-2, backend="cpu", progress=shown)
    printed = capsys.readouterr().err
    assert ("FMM" in printed) is ("reference, ewald" in printed) is shown


def table(capsys, width):
    """Lines that a person reads of one row, and whether they are a Markdown table."""
    shown = terminal.Terminal()
    shown._console = Console(force_terminal=True, width=width)
    shown.heading(COLUMNS)
    shown.row(["6:3x3x5", "962280", "FMM, host bridge", "12.5", "-", "6, 2.5, [9, 9, 9]"])
    return capsys.readouterr().out.splitlines()


COLUMNS = ("system", "atoms", "method", "step, ms", "over PME's", "order, radius, boxes")


def test_a_table_that_is_too_wide_for_the_terminal(capsys):
    """Each cell with its name, no line longer than the terminal."""
    assert table(capsys, 80)[0].startswith("| system | atoms | method | step, ms |")
    assert table(capsys, 60) == [
        "system 6:3x3x5 · atoms 962280 · method FMM, host bridge",
        "    step 12.5 ms · order, radius, boxes 6, 2.5, [9, 9, 9]",
    ]


@pytest.mark.parametrize("name", ["solver", "md"])
def test_tables_of_benchmarks_fit_100_columns(name, capsys, monkeypatch):
    """Whatever is in their cells."""
    names = []
    monkeypatch.setattr(terminal.Terminal, "heading", lambda _, columns: names.extend(columns))
    monkeypatch.setattr("fmm_openmm.bench.solver.measure", stopped)
    monkeypatch.setattr("fmm_openmm.bench.md.Case.from_size", stopped)
    assert main(["bench", name, "--sizes", "3"]) == 2
    monkeypatch.undo()
    shown = terminal.Terminal()
    shown._console = Console(force_terminal=True, width=100)
    shown.heading(names)
    shown.row(["12345.67"] * len(names))
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert len(names) > 10 and max(map(len, lines)) <= 100 and "12345.67" in lines[-1]


def stopped(*_, **__):
    raise ValueError("enough")


# files that are read are not written


WRITTEN = {
    "run": ["--log", "--trajectory", "--plot"],
    "validate": ["--plot"],
    "convert": ["--output"],
    "bench md": ["--json"],
}


@pytest.mark.parametrize("command", WRITTEN)
@pytest.mark.parametrize("way", ["path", "absolute", "symbolic link", "hard link", "force field"])
def test_an_input_is_never_overwritten(fail, tmp_path, command, way):
    source, field = tmp_path / "water.pdb", tmp_path / "field.xml"
    source.write_bytes(Path("water.pdb").read_bytes())
    field.write_text("<ForceField/>")
    before = source.read_bytes(), field.read_bytes()
    named = {
        "path": os.path.relpath(source),
        "absolute": str(source),
        "force field": str(field),
    }.get(way)
    if named is None:
        link = tmp_path / "link.npz"
        link.symlink_to(source) if way == "symbolic link" else link.hardlink_to(source)
        named = str(link)
    files = ["--system", str(source)] if command == "bench md" else [str(source)]
    for each in WRITTEN[command]:
        written = [f"{each}={named}"] if each == "--json" else [each, named]
        line = fail(*command.split(), *files, "--forcefield", str(field), *written)
        assert f"{each} {named} is a file that is read" in line
    assert (source.read_bytes(), field.read_bytes()) == before


def test_outputs_are_different_files(fail, tmp_path):
    line = fail(
        "run", *WATER, "--log", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "." / "a.csv")
    )
    assert f"--log and --plot are one file, {tmp_path}/a.csv: give two" in line


def test_force_field_files_are_not_overwritten(fail, tmp_path):
    (tmp_path / "ions.itp").write_text("; ions")
    log = str(tmp_path / "ions.itp")
    assert f"--log {log} is in the folder of --include" in fail(
        "run", *WATER, "--include", str(tmp_path), "--log", log
    )


# info and check


def test_info(succeed):
    result = succeed("info", "--json")
    assert result["versions"]["OpenMM"].startswith("8.")
    assert {"Reference", "CPU"} <= {entry["name"] for entry in result["platforms"]}
    assert result["backends"]["reference"] == result["backends"]["cpu"] == "available"
    assert result["bridge"]["name"] in ("host", "native")
    text = succeed("info")
    for word in (
        "fmm_openmm",
        "OpenMM",
        "NumPy",
        "SciPy",
        "Numba",
        "Python",
        "Reference",
        "Bridge",
    ):
        assert word in text


def test_info_draws(succeed, tmp_path):
    for files in (), ("converted.xml", "system.xml"):
        plot = tmp_path / f"{len(files)}.svg"
        succeed("info", *files, "--plot", str(plot))
        drawn = plot.read_text()
        assert ("particles" if files else "Reference") in drawn.replace("<!-- ", "")


@pytest.mark.slow
def test_convert_draws(succeed, tmp_path):
    plot = tmp_path / "charges.svg"
    succeed("convert", *WATER, "-o", str(tmp_path / "water.npz"), "--plot", str(plot))
    assert "768 particles" in plot.read_text()


def test_info_on_files(succeed, tmp_path):
    """``info`` describes a file without running its code."""
    hostile = with_function(tmp_path, pickle.dumps(Hostile(tmp_path / "ran")))
    result = succeed("info", "converted.xml", "system.xml", hostile, "--json")["files"]
    ((found,), none, (of_somebody_else,)) = result.values()
    assert none == [] and found["kind"] == "FMMForce"
    assert of_somebody_else == {"kind": "foreign PythonForce", "name": "x", "force_group": 3}
    text = succeed("info", hostile)
    assert "no FMMForce\n" in text and "deserialising the file runs its code" in text
    assert not (tmp_path / "ran").exists()
    assert (found["tolerance"], found["backend"], found["made_by_use_fmm"]) == (5e-4, "auto", True)
    assert found["particles"] == found["exclusions"] and abs(found["net_charge"]) < 1e-9
    text = succeed("info", "converted.xml", "system.xml")
    assert "system.xml: no FMMForce" in text and "tolerance" in text


def with_function(folder, pickled):
    """A System's XML with a PythonForce of this pickle."""
    path = folder / f"{len(list(folder.iterdir()))}.xml"
    path.write_text(
        '<System><Forces><Force type="PythonForce" name="x" forceGroup="3" '
        f'function="{pickled.hex()}"/></Forces></System>'
    )
    return str(path)


class Reduced:
    """Pickled as a call."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_info_is_not_fooled_by_a_pickle_that_resembles_ours(succeed, tmp_path):
    """Another text next to our loader, our names and nothing that is called, a name more, our text
    called and then another, and a place in the unpickler's memory beyond all of this computer's."""
    text = re.search('function="(.*?)"', Path("converted.xml").read_text())[1]
    ours = bytes.fromhex(text)
    _, (source, names) = fmm.find_fmm(
        openmm.XmlSerializer.deserialize(Path("converted.xml").read_text())
    )[0]._bridge.__reduce__()
    ran = tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w')"
    (found,) = succeed("info", with_function(tmp_path, ours), "--json")["files"].values()
    assert found[0]["kind"] == "FMMForce"
    for pickled in (
        pickle.dumps(Reduced(eval, (evil, names))),
        pickle.dumps(names),
        pickle.dumps(Reduced(eval, (source, {**names, "open": evil}))),
        pickle.dumps(Reduced(eval, (source, {**names, "loader": names["loader"] + " "}))),
        pickle.dumps((Reduced(eval, (source, names)), Reduced(eval, (evil, {})))),
        pickle.dumps([Reduced(eval, (source, names))]),
        ours[:2] + b"Nr\xff\xff\xff\xff0" + ours[2:],
        ours[:-1],
        b"",
    ):
        (found,) = succeed("info", with_function(tmp_path, pickled), "--json")["files"].values()
        assert [force["kind"] for force in found] == ["foreign PythonForce"]
    assert not ran.exists()


@pytest.mark.parametrize(
    "start",
    [
        '<!DOCTYPE System [<!ENTITY a "aaaaaaaa">]><System>',
        '<System><!--> <Force type="PythonForce"/> -->',
        '<System><![CDATA[ <Force type="PythonForce"/> ]]>',
        "<System><?python force?>",
    ],
)
def test_info_refuses_xml_that_openmm_does_not_write(fail, tmp_path, start):
    (tmp_path / "odd.xml").write_text(f'<?xml version="1.0" ?>\n{start}</System>')
    assert "odd.xml: a " in (line := fail("info", str(tmp_path / "odd.xml")))
    assert "which OpenMM does not write" in line


@pytest.mark.slow
def test_info_bounds_its_memory(succeed, fail, tmp_path):
    """A table of a gigabyte in one block is damage; in blocks it is read one by one."""
    packed = json.loads(fmm.FMMForce()._definition.pack())
    zeros = zlib.compress(bytes(1 << 27), 9)
    small = base64.b64encode(zlib.compress(bytes(8 * 1024), 9)).decode()
    deserialised = openmm.XmlSerializer.deserialize(Path("converted.xml").read_text())
    _, (source, names) = fmm.find_fmm(deserialised)[0]._bridge.__reduce__()

    def file(charges):
        text = json.dumps({**packed, "charges": charges})
        return with_function(
            tmp_path, pickle.dumps(Reduced(eval, (source, {**names, "packed": text})))
        )

    bomb, many = file(base64.b64encode(zeros).decode()), file(" ".join([small] * 8192))
    tracemalloc.start()
    try:
        assert "more than 1024 rows" in fail("info", bomb)
        (found,) = succeed("info", many, "--json")["files"].values()
        assert found[0]["particles"] == 8192 * 1024  # 64 MiB of charges
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * os.path.getsize(many)


def test_brackets_are_shown_as_they_are(succeed, monkeypatch, tmp_path):
    """Brackets are not markup: ``pip install 'fmm_openmm[cuda13]'`` would lose its extra."""
    path = str(tmp_path / "a[b].npz")
    assert "a[b].npz" in succeed("convert", *WATER, "-o", path).replace("\n", "").replace(" ", "")
    monkeypatch.setattr(
        info, "describe_backend", lambda name: (name, "pip install 'fmm_openmm[cuda13]'")
    )
    assert "'fmm_openmm[cuda13]'" in succeed("info")


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_info_on_a_file_that_is_no_xml(fail):
    assert "cannot read water.pdb" in fail("info", "water.pdb")
    assert "no such file: nothing.xml" in fail("info", "nothing.xml")


def test_a_damaged_fmm_force(fail, folder):
    """The error names the file."""
    text = (folder / "converted.xml").read_text()
    packed = re.search('function="(.*?)"', text)[1]
    for name, wrong in (
        ("letters.xml", "zz" + packed[2:]),
        ("names.xml", packed.replace(b"charges".hex(), b"chargez".hex())),
    ):
        (folder / name).write_text(text.replace(packed, wrong))
        assert f"cannot read {name}: " in fail("info", name)
    assert "cannot read names.xml: " in fail("convert", "names.xml", "water.pdb", "-o", "out.npz")


@pytest.mark.slow
def test_check_passes(succeed, tmp_path):
    result = succeed("check", "--json", "--plot", str(tmp_path / "check.png"))
    assert result["passed"] is True
    assert {entry["verdict"] for entry in result["checks"]} <= {"passed", "skipped"}
    names = [entry["name"] for entry in result["checks"]]
    assert any("Madelung" in name for name in names)
    assert any("platform CPU" in name for name in names)
    compared = [entry for entry in result["checks"] if "water" in entry["name"]]
    assert all(
        entry["error"] < entry["largest"] < 6 * entry["limit"]
        for entry in compared
        if entry["verdict"] == "passed"
    )
    assert (tmp_path / "check.png").stat().st_size > 1000


@pytest.mark.slow
def test_check_fails_when_an_answer_is_wrong(succeed, monkeypatch):
    monkeypatch.setattr(check, "MADELUNG_ROCK_SALT", 1.7476)
    monkeypatch.setattr(check, "WATER_TOLERANCES", ())
    monkeypatch.setattr(check, "platform_names", list)
    result = succeed("check", "--json", code=1)
    assert result["passed"] is False
    assert {entry["verdict"] for entry in result["checks"]} == {"failed"}
    assert "SOME CHECKS FAILED" in succeed("check", code=1)


def test_check_fails_where_the_fmm_does(succeed, monkeypatch):
    """A platform is skipped where PME fails only; what the FMM raised is shown."""

    def forces_on(platform, system, positions):
        if platform == "Broken" or fmm.find_fmm(system):
            raise openmm.OpenMMException(f"no forces on {platform}")
        return positions

    monkeypatch.setattr(check, "BACKENDS", ())
    monkeypatch.setattr(check, "platform_names", lambda: ["CPU", "Broken"])
    monkeypatch.setattr(check, "forces_on", forces_on)
    cpu, broken = succeed("check", "--json", code=1)["checks"]
    assert (cpu["verdict"], cpu["error"], cpu["failure"]) == (
        "failed",
        None,
        "OpenMMException: no forces on CPU",
    )
    assert (broken["verdict"], broken["skipped"]) == ("skipped", "no forces on Broken")
    assert "platform CPU: OpenMMException: no forces on CPU" in succeed("check", code=1)


# inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        WATER,
        ("water.cif", "--forcefield", FORCE_FIELD),
        ("water.cif.gz", "--forcefield", FORCE_FIELD),
        ("system.xml", "water.pdb"),
        ("water.pdb", "converted.xml"),
        ("water.prmtop", "water.rst7"),
        ("amber.top", "water.rst7"),
        ("water.top", "water.gro"),
        ("water.psf", "water.pdb", "--parameters", "water.prm", "water.rtf"),
        ("water.psf", "water.crd", "--parameters", "water.prm", "--box", "1.9", "2.0", "2.1"),
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_every_input_gives_the_same_system(argv, succeed, tmp_path):
    if {"water.prmtop", "water.rst7", "water.top", "water.psf"} & set(argv):
        pytest.importorskip("parmed")
    result = succeed("convert", *argv, "-o", str(tmp_path / "out.npz"), "--json")
    assert result["particles"] == 768
    found = fmm.ChargeSystem.load(tmp_path / "out.npz")
    expected = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    assert found.charges == pytest.approx(expected.charges, abs=1e-6)
    assert found.positions == pytest.approx(
        expected.positions, abs=1e-6 if "water.gro" not in argv else 6e-4
    )
    assert found.box_vectors == pytest.approx(BOX, abs=1e-6)
    assert np.array_equal(found.exclusions, expected.exclusions)


@pytest.mark.slow
def test_state_beside_its_system(succeed, folder, tmp_path):
    """Positions, box and global parameters are those of the State, also with a structure."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    force.addGlobalParameter("lambda", 1.0)
    for k in range(3):
        charge, *rest = force.getParticleParameters(k)
        force.setParticleParameters(k, 0.0, *rest)
        force.addParticleParameterOffset("lambda", k, charge, 0.0, 0.0)
    (folder / "lambda.xml").write_text(openmm.XmlSerializer.serialize(system))
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    context.setPositions(positions := small_water()[2] + 0.1)
    context.setPeriodicBoxVectors(*(box := 1.01 * BOX))
    context.setParameter("lambda", 0.5)
    state = context.getState(positions=True, parameters=True)
    (folder / "half.xml").write_text(openmm.XmlSerializer.serialize(state))
    for structure in [], ["water.pdb"]:
        succeed("convert", "half.xml", *structure, "lambda.xml", "-o", str(tmp_path / "out.npz"))
        found = fmm.ChargeSystem.load(tmp_path / "out.npz")
        assert found.positions == pytest.approx(positions, abs=1e-9)
        assert found.box_vectors == pytest.approx(box)
        whole = fmm.ChargeSystem.from_openmm(small_water()[1]).charges
        assert found.charges[:3] == pytest.approx(0.5 * whole[:3])
        assert found.charges[3:] == pytest.approx(whole[3:])


def test_a_state_that_an_fmm_force_cannot_follow(fail, folder):
    system, force = openmm.System(), fmm.FMMForce()
    force.addGlobalParameter("charging", 1.0)
    for charge in 1.0, -1.0:
        system.addParticle(1.0)
        force.addParticle(charge)
    system.addForce(force)
    (folder / "own.xml").write_text(openmm.XmlSerializer.serialize(system))
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    context.setPositions([[0, 0, 0], [0.3, 0, 0]])
    context.setParameter("charging", 0.25)
    state = context.getState(positions=True, parameters=True)
    (folder / "quarter.xml").write_text(openmm.XmlSerializer.serialize(state))
    assert "quarter.xml has charging = 0.25, which an FMMForce of the System has at 1" in fail(
        "convert", "own.xml", "quarter.xml", "-o", "out.npz"
    )


@pytest.mark.slow
def test_charges_from_convert(succeed, fail, tmp_path):
    """Stored charges are validated like the files that they were made from, and are not
    simulated."""
    charges = str(tmp_path / "water.npz")
    succeed("convert", *WATER, "-o", charges)
    again = str(tmp_path / "again.npz")
    succeed("convert", charges, "-o", again)
    assert Path(again).read_bytes() == Path(charges).read_bytes()
    found, expected = (succeed("validate", *argv, "--json") for argv in ([charges], WATER))
    assert found["reference_energy"] == pytest.approx(expected["reference_energy"], rel=1e-6)
    assert found["passed"] and found["pme"]["method"] == expected["pme"]["method"]
    for argv in ["run", charges], ["bench", "md", "--system", charges]:
        assert "holds charges alone, without masses" in fail(*argv)
    fmm.ChargeSystem([1.0, -1.0]).save(tmp_path / "bare.npz")
    assert "bare.npz holds no positions" in fail("validate", str(tmp_path / "bare.npz"))


@pytest.mark.slow
def test_slabs(succeed, fail, tmp_path):
    """The boundary is kept in files, and in a System that was converted with it."""
    argv = [*WATER, "--box", "1.9", "2.0", "4.5", "--cutoff", "0.9", "--boundary", "slab"]
    found = succeed("validate", *argv, "--tolerance", "1e-3", "--json")
    assert found["boundary"] == "slab" and found["passed"]
    assert found["reference"] == "an Ewald sum" and "vacuum" in found["pme"]["method"]
    charges = str(tmp_path / "slab.npz")
    assert succeed("convert", *argv, "-o", charges, "--json")["boundary"] == "slab"
    again = succeed("validate", charges, "--reference", "pme", "--tolerance", "1e-3", "--json")
    assert again["boundary"] == "slab" and again["passed"]
    found = succeed("run", *argv, "--steps", "2", "--backend", "cpu", "--platform", "CPU", "--json")
    assert found["boundary"] == "slab"
    assert "needs vacuum along box vector c" in fail("validate", *WATER, "--boundary", "slab")


# trajectories


@pytest.fixture(scope="module")
def trajectories(folder):
    """Three frames of the water, in a box that grows, as DCD, XTC and NetCDF, and without a cell;
    their positions and boxes."""
    mdtraj = pytest.importorskip("mdtraj")
    topology, _, positions = small_water()
    scale = 1 + 0.01 * np.arange(3)
    moved = np.random.default_rng(1).normal(0, 0.001, (3, len(positions), 3))
    frames = positions * scale[:, None, None] + moved
    found = mdtraj.Trajectory(
        frames,
        mdtraj.Topology.from_openmm(topology),
        time=np.arange(3.0),
        unitcell_lengths=scale[:, None] * np.diag(BOX),
        unitcell_angles=np.full((3, 3), 90.0),
    )
    for name in "run.dcd", "run.xtc", "run.nc":
        found.save(str(folder / name))
    found.unitcell_vectors = None
    found.save(str(folder / "nocell.dcd"))
    return frames, scale[:, None, None] * BOX


@pytest.mark.parametrize(
    "argv",
    [
        ("system.xml", "run.dcd"),
        ("converted.xml", "water.pdb", "run.xtc"),
        ("run.dcd", *WATER),
        ("water.prmtop", "run.nc"),
        ("water.top", "run.xtc"),
        ("water.psf", "run.dcd", "--parameters", "water.prm", "water.rtf"),
        ("charges.npz", "run.dcd"),
    ],
    ids=" ".join,
)
def test_analyse(argv, succeed, trajectories, tmp_path):
    if {"water.prmtop", "water.top", "water.psf"} & set(argv):
        pytest.importorskip("parmed")
    frames, boxes = trajectories
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    charges.save("charges.npz")
    out, plot, table = (str(tmp_path / name) for name in ("out.npz", "out.png", "out.csv"))
    arguments = ("analyse", *argv, "--stride", "2", "--tolerance", "1e-5")
    succeed(*arguments, "-o", out, "--potentials", "--forces", "--plot", plot)
    found = np.load(out)
    assert (found["frames"].tolist(), len(found["times"])) == ([0, 2], 2)
    for k, number in enumerate((0, 2)):
        positions = frames[number] if "run.xtc" not in argv else frames[number].round(3)
        exact = ewald_sum(positions, charges.charges, boxes[number], charges.exclusions)
        assert found["energies"][k] == pytest.approx(exact.energy, rel=1e-4)
        for name in "forces", "potentials":
            expected = getattr(exact, name)
            error = np.linalg.norm(found[name][k] - expected) / np.linalg.norm(expected)
            assert error < 3e-5
    assert Path(plot).stat().st_size > 1000
    result = succeed(*arguments, "-o", table, "--json")
    with open(table) as file:
        rows = list(csv.DictReader(file))
    assert [float(row["coulomb_energy"]) for row in rows] == found["energies"].tolist()
    assert result["energies"] == found["energies"].tolist()


@pytest.mark.slow
def test_analyse_virial(succeed, trajectories, tmp_path):
    out = str(tmp_path / "out.npz")
    succeed("analyse", "system.xml", "run.dcd", "--tolerance", "1e-5", "--virial", "-o", out)
    found = np.load(out)
    assert found["virial"].shape == (3, 3, 3)
    assert np.trace(found["virial"], axis1=1, axis2=2) == pytest.approx(found["energies"])


@pytest.mark.slow
def test_analyse_with_workers(succeed, trajectories):
    argv = ("analyse", "system.xml", "run.dcd", "--json", "--tolerance", "1e-5")
    expected = succeed(*argv)["energies"]
    assert succeed(*argv, "--workers", "2")["energies"] == expected


@pytest.mark.slow
def test_analyse_that_fails_keeps_what_it_has(fail, succeed, trajectories):
    mdtraj = pytest.importorskip("mdtraj")
    trajectory = mdtraj.load("run.dcd", top="water.pdb")
    trajectory.xyz[2, 0, 0] = np.nan
    trajectory.save("bad.dcd")
    argv = ("--tolerance", "1e-5", "--backend", "cpu", "--potentials", "-o", "two.npz")
    text = fail("analyse", "system.xml", "bad.dcd", *argv)
    assert "frame 2 (ValueError: `positions`" in text and "2 frames are done, in two.npz" in text
    succeed("analyse", "system.xml", "run.dcd", *argv[:4], "-o", "all.npz")
    found, expected = np.load("two.npz"), np.load("all.npz")
    assert found["frames"].tolist() == [0, 1] and found["potentials"].shape == (2, 768)
    for name in "times", "energies":
        assert np.array_equal(found[name], expected[name][:2])


@pytest.mark.slow
def test_analyse_takes_the_box_of_the_system_where_there_is_none(succeed, trajectories):
    pytest.importorskip("mdtraj")
    argv = ("analyse", "system.xml", "nocell.dcd", "--json", "--tolerance", "1e-5")
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    for options, box in ((), BOX), (("--box", "2.2", "2.3", "2.4"), np.diag([2.2, 2.3, 2.4])):
        found = succeed(*argv, *options)["energies"]
        exact = [
            ewald_sum(x, charges.charges, box, charges.exclusions).energy for x in trajectories[0]
        ]
        assert found == pytest.approx(exact, rel=1e-4)


def test_analyse_that_is_interrupted_keeps_what_it_has(succeed, trajectories, monkeypatch):
    """Ctrl-C during the first frame."""
    compute, calls = fmm.CoulombSolver.compute, []

    def interrupted(*arguments, **keywords):
        if not calls:
            signal.raise_signal(signal.SIGINT)
        calls.append(arguments)
        return compute(*arguments, **keywords)

    monkeypatch.setattr(fmm.CoulombSolver, "compute", interrupted)
    argv = ("analyse", "system.xml", "run.dcd", "-o", "first.npz", "--potentials")
    assert "Interrupted after frame 0" in succeed(*argv, code=130)
    found = np.load("first.npz")
    assert (found["frames"].tolist(), found["potentials"].shape) == ([0], (1, 768))


@pytest.mark.slow
def test_analyse_in_free_space(succeed, folder, trajectories):
    """Whatever cell the trajectory has."""
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    fmm.ChargeSystem(charges.charges, charges.positions, None, charges.exclusions).save("free.npz")
    argv = ("analyse", "free.npz", "run.dcd", "--tolerance", "1e-5", "--stride", "2", "--json")
    result = succeed(*argv)
    solver = fmm.CoulombSolver(
        charges.charges, None, charges.exclusions, boundary="open", method="direct", backend="cpu"
    )
    exact = [solver.compute(positions).energy for positions in trajectories[0][::2]]
    assert (result["boundary"], len(exact)) == ("free space", 2)
    assert result["energies"] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run.dcd"], "run.dcd needs a topology: .prmtop, .psf, .top, or the structure or System"),
        (["system.xml", "water.pdb"], "no trajectory among system.xml and water.pdb"),
        (["system.xml", "cut.dcd"], "cannot read cut.dcd, for 768 atoms: "),
        (["system.xml", "run.dcd", "--forces"], "--forces needs --output FILE.npz, got None"),
        (["system.xml", "run.dcd", "-o", "x.txt"], "--output must end in .csv or .npz, got x.txt"),
        (["system.xml", "run.dcd", "--stride", "0"], "--stride must be at least 1, got 0"),
        (
            ["system.xml", "run.dcd", "--workers", "0"],
            "--workers must lie between 1 and 1024, got 0",
        ),
        (["few.xml", "run.dcd"], "cannot read run.dcd, for 2 atoms: "),
    ],
)
def test_analyse_refuses(argv, message, fail, folder, trajectories):
    (folder / "cut.dcd").write_bytes((folder / "run.dcd").read_bytes()[:150])
    few, force = openmm.System(), openmm.NonbondedForce()
    for charge in 1.0, -1.0:
        few.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    few.addForce(force)
    (folder / "few.xml").write_text(openmm.XmlSerializer.serialize(few))
    assert message in fail("analyse", *argv)


@pytest.fixture
def layer(folder):
    """Charges, the whole positions of a layer of ions in two frames, and its box; files of the
    charges, and of the frames, wrapped at the face of the box that the layer crosses."""
    mdtraj = pytest.importorskip("mdtraj")
    random = np.random.default_rng(4)
    charges, box = np.resize([1.0, -1.0], 30), np.diag([2.0, 2.0, 6.0])
    whole = random.uniform(0, [2, 2, 1.2], (2, 30, 3)) - [0, 0, 0.4]
    topology = mdtraj.Topology()
    residue = topology.add_residue("ION", topology.add_chain())
    for _ in charges:
        topology.add_atom("X", mdtraj.element.virtual, residue)
    frames = np.mod(whole, np.diag(box))
    lengths, angles = np.tile(np.diag(box), (2, 1)), np.full((2, 3), 90.0)
    found = mdtraj.Trajectory(frames, topology, unitcell_lengths=lengths, unitcell_angles=angles)
    found.save(str(folder / "layer.dcd"))
    fmm.ChargeSystem(charges, frames[0], box).save(str(folder / "layer.npz"))
    return charges, whole, box


def test_analyse_a_slab(succeed, layer):
    charges, whole, _ = layer
    cell = np.diag([2.0, 2.0, np.inf])
    argv = ("analyse", "layer.npz", "layer.dcd", "--boundary", "slab", "--tolerance", "1e-5")
    found = succeed(*argv, "--json")
    assert found["boundary"] == "slab"
    exact = [partial_ewald_sum(x, charges, cell).energy for x in whole]
    assert found["energies"] == pytest.approx(exact, rel=1e-4)


@pytest.mark.slow
def test_potential_of_a_slab(succeed, fail, layer, tmp_path):
    charges, whole, box = layer
    plot = str(tmp_path / "profile.png")
    argv = ("potential", "layer.npz", "--boundary", "slab", "--tolerance", "1e-5", "--grid", "0.3")
    options = ("--charge-width", "0.2", "--margin", "0.8", "--json")
    found = succeed(*argv, "layer.dcd", *options, "--plot", plot)
    solver = fmm.CoulombSolver(charges, box, boundary="slab", tolerance=1e-5)
    options = {"charge_width": 0.2, "margin": 0.8, "progress": False}
    expected = fmm.potential_map(whole, solver, 0.3, **options)
    places, means = expected.profile("z")
    assert (found["axis"], found["frames"]) == ("z", 2)
    assert found["places"] == pytest.approx(places, abs=1e-5)
    assert found["profile"] == pytest.approx(means, abs=1e-3 * np.ptp(means))
    assert Path(plot).stat().st_size > 1000
    alone = succeed(*argv, "--charge-width", "0.2", "--json")  # the structure, which is wrapped too
    expected = fmm.potential_map(whole[:1], solver, 0.3, charge_width=0.2, progress=False)
    assert alone["profile"] == pytest.approx(expected.profile("z")[1], abs=1e-3 * np.ptp(means))
    assert "--margin must lie between 0 and 1000 (nm), got -1.0" in fail(*argv, "--margin", "-1")
    across = ("--boundary", "ac", "--grid", "0.5", "--json")
    assert "needs vacuum along box vector b" in fail(*argv, *across)


# maps


@pytest.mark.slow
def test_potential(succeed, trajectories, tmp_path):
    griddata = pytest.importorskip("gridData")
    cube = pytest.importorskip("ase.io.cube")
    frames, boxes = trajectories
    names = ("map.dx", "map.cube", "map.npz", "profile.png")
    dx, gaussian, arrays, plot = (str(tmp_path / name) for name in names)
    argv = ("potential", "system.xml", "water.pdb", "--grid", "0.4", "--tolerance", "1e-5")
    options = ("--trajectory", "run.dcd", "--stride", "2")
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    pairs = [*zip(frames.astype(np.float32), boxes, strict=True)][::2]
    solver = charges.solver(tolerance=1e-5, positions=pairs[0][0])
    expected = fmm.potential_map(pairs, solver, 0.4, progress=False)
    found = succeed(*argv, *options, "-o", arrays, "--plot", plot, "--axis", "x", "--json")
    assert (found["frames"], found["counts"]) == (2, [5, 5, 6])
    values = np.load(arrays)["values"]
    assert values == pytest.approx(expected.values, rel=1e-4, abs=0.1)
    assert found["profile"] == pytest.approx(values.mean((1, 2)))
    assert found["places"] == pytest.approx(np.arange(5) * expected.vectors[0, 0] / 5, rel=1e-4)
    assert Path(plot).stat().st_size > 1000
    succeed(*argv, "run.dcd", "--stride", "2", "-o", dx, "--units", "V", "--workers", "2")
    assert griddata.Grid(dx).grid * 96.4853 == pytest.approx(values, rel=1e-4)
    succeed(*argv, "-o", gaussian)
    with open(gaussian) as file:
        atoms = cube.read_cube(file)["atoms"]
    assert atoms.numbers.tolist() == [8, 1, 1] * 256
    assert atoms.positions / 10 == pytest.approx(charges.positions, abs=1e-5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-o", "x.txt"], "--output must end in .dx, .cube, .cub, .npz, got x.txt"),
        (["--grid", "0"], "--grid must be finite and above 0 (nm), got 0.0"),
        (["--temperature", "-1"], "--temperature must be finite and above 0 (K), got -1.0"),
        (["--charge-width", "2"], "--charge-width must lie between 0 and 1 (nm), got 2.0"),
        (["-o", "x.cube", "--units", "V"], "--units apply to .dx files, got x.cube"),
        (["--trajectory", "run.dcd", "-o", "run.dcd"], "run.dcd is a file that is read"),
        (["--stride", "0"], "--stride must be at least 1, got 0"),
    ],
)
def test_potential_refuses(argv, message, fail, trajectories):
    assert message in fail("potential", "system.xml", "water.pdb", *argv)


def test_box_with_angles(succeed, tmp_path):
    argv = (
        "convert",
        *WATER,
        "--box",
        "2",
        "2",
        "2",
        "60",
        "60",
        "90",
        "-o",
        str(tmp_path / "out.npz"),
        "--json",
    )
    expected = np.array([[2, 0, 0], [0, 2, 0], [1, 1, np.sqrt(2)]])
    assert np.abs(succeed(*argv)["box_vectors"]) == pytest.approx(expected)


def state_of_water(positions=True, velocities=True, system=None):
    """A State of the water, its velocities those of 300 K."""
    _, original, found = small_water()
    context = openmm.Context(
        system or original,
        openmm.VerletIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    context.setPositions(found)
    context.setVelocitiesToTemperature(300.0, 1)
    return context.getState(positions=positions, velocities=velocities, parameters=True)


GARBAGE = {
    ".pdb": ["--forcefield", FORCE_FIELD],
    ".pdb.gz": ["--forcefield", FORCE_FIELD],
    ".cif": ["--forcefield", FORCE_FIELD],
    ".xml": ["water.pdb"],
    ".prmtop": ["water.rst7"],
    ".rst7": ["water.prmtop"],
    ".top": ["water.gro"],
    ".gro": ["water.top"],
    ".psf": ["water.pdb", "--parameters", "water.prm", "water.rtf"],
    ".crd": ["water.psf", "--parameters", "water.prm"],
    ".npz": [],
}
"""Endings of files of arbitrary bytes, and what goes with them."""


@pytest.fixture(scope="module")
def bad_files(folder):
    """Files that are empty, garbage or of another kind, in the folder of the inputs."""
    for ending in GARBAGE:
        (folder / f"garbage{ending}").write_bytes(bytes(range(256)) * 8)
    (folder / "field.xml").write_text("<ForceField/>")
    (folder / "run.dcd").write_bytes(b"CORD")
    (folder / "saved.xml").write_text(openmm.XmlSerializer.serialize(state_of_water()))
    (folder / "empty_state.xml").write_text(
        openmm.XmlSerializer.serialize(state_of_water(positions=False, velocities=False))
    )
    (folder / "notes.txt").write_text("no molecules here")
    (folder / "bad.pdb").write_text("ATOM  this is not a PDB file\n")
    (folder / "bad.xml").write_text("<System>")
    for name in ("empty.pdb", "empty.xml"):
        (folder / name).write_text("")
    for name in ("remark.pdb", "remark.cif", "remark.gro"):
        (folder / name).write_text("REMARK no atoms\n")
    (folder / "remark.pdb.gz").write_bytes(gzip.compress(b"REMARK no atoms\n"))
    (folder / "bad.prmtop").write_text("%VERSION\n%FLAG NOTHING\n")
    (folder / "open.xml").write_text(openmm.XmlSerializer.serialize(openmm.System()))
    (folder / "state.xml").write_text(
        openmm.XmlSerializer.serialize(openmm.VerletIntegrator(0.001))
    )
    atom = "HETATM{0:5d}  O   HOH A{0:4d}       0.000   0.000{0:8.3f}  1.00  0.00           O\n"
    (folder / "pair.pdb").write_text(atom.format(1) + atom.format(2) + "END\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing.pdb"], "no such file: nothing.pdb"),
        (["water.pdb"], "water.pdb needs --forcefield"),
        (["water.psf", "water.pdb"], "water.psf needs --parameters"),
        (["water.prmtop"], "water.prmtop needs coordinates: .inpcrd or .rst7 with it"),
        (["water.rst7"], "water.rst7 needs a topology: AMBER's .prmtop or .parm7 with it"),
        (["water.gro"], "water.gro needs a topology: GROMACS' .top with it"),
        (["water.top"], "water.top needs coordinates: .gro with it"),
        (["water.psf"], "water.psf needs coordinates: .pdb, .cif or .crd with it"),
        (["water.crd"], "water.crd needs a topology: CHARMM's .psf or AMBER's .prmtop with it"),
        (["system.xml"], "system.xml needs positions: a structure (.pdb, .cif), or an openmm.St"),
        (["saved.xml"], "saved.xml needs the openmm.System (.xml) that it belongs to with it"),
        (["system.xml", "empty_state.xml"], "empty_state.xml holds no positions: save it with"),
        (["water.pdb", "field.xml"], "field.xml is a force field: give it with --forcefield"),
        (
            ["water.pdb", "run.dcd"],
            "run.dcd is a trajectory: it is for fmm-openmm analyse and potential",
        ),
        *(([f"garbage{ending}", *rest], f"garbage{ending}") for ending, rest in GARBAGE.items()),
        (["water.prmtop", "water.gro"], "cannot make a system of water.prmtop and water.gro"),
        (["water.pdb", "water.cif"], "water.pdb and water.cif are of the same kind"),
        (["notes.txt"], "notes.txt: unknown kind of file '.txt', expected one of .pdb"),
        (["bad.pdb", "--forcefield", FORCE_FIELD], "cannot read bad.pdb"),
        (["empty.pdb", "--forcefield", FORCE_FIELD], "empty.pdb is empty"),
        (["system.xml", "empty.pdb"], "empty.pdb is empty"),
        (["empty.xml", "water.pdb"], "empty.xml is empty"),
        (["remark.pdb", "--forcefield", FORCE_FIELD], "remark.pdb: no atoms, or cut short"),
        (["remark.cif", "--forcefield", FORCE_FIELD], "remark.cif: no atoms, or cut short"),
        (["remark.pdb.gz", "system.xml"], "remark.pdb.gz: no atoms, or cut short"),
        (["water.top", "remark.gro"], "remark.gro: no atoms, or cut short"),
        (["bad.xml", "water.pdb"], "cannot read bad.xml"),
        (["state.xml", "water.pdb"], "state.xml holds a VerletIntegrator, not a System"),
        (
            ["system.xml", "pair.pdb"],
            "system.xml and pair.pdb do not fit: 2 positions for 768 particles",
        ),
        (["bad.prmtop", "water.rst7"], "cannot read bad.prmtop"),
        (["water.pdb", "--forcefield", "nothing.xml"], "cannot read nothing.xml"),
        (["water.pdb", "--forcefield", "tip5p.xml"], "No template found for residue 0 (HOH)"),
        (
            [*WATER, "--box", "2", "2"],
            "--box takes three positive lengths in nm, or these and three angles",
        ),
        ([*WATER, "--box", "2", "-2", "2"], "--box takes three positive lengths"),
        (
            [*WATER, "--box", "2", "2", "2", "90", "90", "200"],
            "--box 2 2 2 90 90 200 is no cell: `box_vectors`",
        ),
        ([*WATER, "--box", "2", "2", "2", "90", "90", "180"], "--box 2 2 2 90 90 180 is no cell"),
        (
            [*WATER, "--box", "2", "2", "3", "90", "60", "90", "--boundary", "wire"],
            "cannot be reduced, as OpenMM requires, with boundary 'wire'",
        ),
        (
            [*WATER, "--cutoff", "-1"],
            "fmm-openmm: --cutoff must be finite and above 0 (nm), got -1",
        ),
        (
            [*WATER, "--cutoff", "nan"],
            "fmm-openmm: --cutoff must be finite and above 0 (nm), got nan",
        ),
        (
            [*WATER, "--switch", "0.9"],
            "fmm-openmm: --switch must lie between 0 and the cutoff, 0.9 nm, got 0.9",
        ),
        (
            [*WATER, "--cutoff", "0.8", "--switch", "0"],
            "--switch must lie between 0 and the cutoff, 0.8 nm, got 0.0",
        ),
        (
            ["system.xml", "water.pdb", "--switch", "0.7"],
            "--switch does not apply to system.xml and water.pdb",
        ),
        ([*WATER, "--include", "folder"], "--include does not apply to water.pdb: leave it out"),
        ([*WATER, "--parameters", "x.prm"], "--parameters does not apply to water.pdb"),
        (
            ["system.xml", "water.pdb", "--constraints", "none"],
            "--constraints does not apply to system.xml and water.pdb",
        ),
        (
            ["open.xml", "water.pdb", "--box", "2", "2", "2"],
            "--box needs a periodic System, open.xml holds one that is not",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input(argv, message, fail, bad_files, tmp_path):
    if any(name.endswith((".psf", ".prmtop", ".gro", ".rst7", ".crd", ".top")) for name in argv):
        pytest.importorskip("parmed")
    assert message in fail("convert", *argv, "-o", str(tmp_path / "out.npz"))
    assert not (tmp_path / "out.npz").exists()


def pdb_with(cell, folder, name):
    """The water with this line in place of its cell."""
    lines = (folder / "water.pdb").read_text().splitlines(keepends=True)
    (folder / name).write_text(
        cell + "".join(line for line in lines if not line.startswith("CRYST1"))
    )
    return name


@pytest.mark.slow
def test_boxes_of_other_files(succeed, folder, tmp_path):
    """Of the System where the structure has none; of the prmtop where the coordinates have none;
    none in a .gro of zeros."""
    out = tmp_path / "out.npz"
    succeed("convert", "system.xml", pdb_with("", folder, "open.pdb"), "-o", str(out))
    assert fmm.ChargeSystem.load(out).box_vectors == pytest.approx(BOX, abs=1e-6)
    trajectory = str(tmp_path / "run.pdb")
    argv = ("--steps", "1", "--interval", "1", "--timestep", "0.0005", "--trajectory", trajectory)
    succeed("run", "system.xml", "open.pdb", *argv)
    assert app.PDBFile(trajectory).topology.getPeriodicBoxVectors() is not None
    pytest.importorskip("parmed")
    (folder / "nobox.rst7").write_text(
        "".join((folder / "water.rst7").read_text().splitlines(keepends=True)[:-1])
    )
    succeed("convert", "water.prmtop", "nobox.rst7", "-o", str(out))
    assert fmm.ChargeSystem.load(out).box_vectors == pytest.approx(BOX, abs=1e-6)
    lines = (folder / "water.gro").read_text().splitlines()
    (folder / "zero.gro").write_text("\n".join([*lines[:-1], "0.0 0.0 0.0", ""]))
    assert (
        succeed("convert", "water.top", "zero.gro", "-o", str(out), "--json")["box_vectors"] is None
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", ["", "CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1\n"]
)
def test_a_system_without_box_is_in_empty_space(cell, succeed, fail, folder, tmp_path):
    argv = (pdb_with(cell, folder, "open.pdb"), "--forcefield", FORCE_FIELD)
    assert (
        succeed("convert", *argv, "-o", str(tmp_path / "out.npz"), "--json")["box_vectors"] is None
    )
    log = tmp_path / "run.csv"
    result = succeed(
        "run",
        *argv,
        "--steps",
        "5",
        "--interval",
        "5",
        "--minimize",
        "5",
        "--log",
        str(log),
        "--json",
    )
    assert (result["fmm"]["bridge"], result["mean_volume"]) == ("host", None)
    assert log.read_text().splitlines()[-1].endswith(",nan")
    assert "--ensemble npt needs a periodic box: give one with --box" in fail(
        "run", *argv, "--ensemble", "npt"
    )
    result = succeed("validate", *argv, "--json", "--plot", str(tmp_path / "errors.png"))
    assert (result["reference"], result["passed"], result["pme"]) == (
        "the sum over all pairs",
        True,
        None,
    )
    assert "`reference` must be 'direct' or 'nocutoff'" in fail(
        "validate", *argv, "--reference", "pme"
    )
    assert "--cutoff has no meaning in free space" in fail(
        "convert", *argv, "--cutoff", "0.8", "-o", str(tmp_path / "out.npz")
    )
    assert "--switch has no meaning in free space" in fail(
        "convert", *argv, "--switch", "0.8", "-o", str(tmp_path / "out.npz")
    )
    assert "--pme-tolerance has no meaning in free space" in fail(
        "validate", *argv, "--pme-tolerance", "1e-5"
    )


# notes


FREE_SPACE = "no periodic box in open.pdb: free space; --box to set one"
SHORT_RUN = (
    "--minimize",
    "20",
    "--steps",
    "1",
    "--interval",
    "1",
    "--timestep",
    "0.0001",
    "--tolerance",
    "1e-3",
)
COMMANDS = [("convert", "-o", "out.npz"), ("run", *SHORT_RUN), ("validate", "--tolerance", "1e-3")]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


def noted(succeed, command, *argv):
    """Boundary and notes of the JSON; what people read has the same."""
    name, *rest = command
    result, text = succeed(name, *argv, *rest, "--json"), succeed(name, *argv, *rest)
    for note in result["notes"]:
        assert text.splitlines().count(note) == 1
    assert re.search(rf"^boundary +{result['boundary']} *$", text, re.MULTILINE)
    return result["boundary"], result["notes"]


@each_command
def test_nothing_unusual(command, succeed):
    for files in WATER, ("converted.xml", "water.pdb"):
        assert noted(succeed, command, *files) == ("periodic", [])


@each_command
def test_free_space_is_named(command, succeed, folder):
    argv = (pdb_with("", folder, "open.pdb"), "--forcefield", FORCE_FIELD)
    assert noted(succeed, command, *argv) == ("free space", [FREE_SPACE])
    with_box = (*argv, "--box", "1.9", "2", "2.1")
    assert noted(succeed, command, *with_box) == ("periodic", [])


@each_command
def test_a_system_in_free_space_is_named(command, succeed, folder):
    """The box of the structure makes no difference."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce)).setNonbondedMethod(
        0
    )
    (folder / "nocutoff.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = ("nocutoff.xml", "water.pdb")
    assert noted(succeed, command, *argv) == (
        "free space",
        ["no periodic boundary in nocutoff.xml: free space"],
    )


@pytest.mark.parametrize(
    ("lengths", "density"),
    [
        (("19", "20", "21"), "768 atoms in 7980 nm^3: 0.0962 atoms per nm^3"),
        (("9", "9", "9"), None),
        (("1.9", "1.3", "1"), "768 atoms in 2.47 nm^3: 311 atoms per nm^3"),
    ],
)
def test_a_box_in_another_unit_is_noticed(lengths, density, succeed):
    notes = succeed("convert", *WATER, "--box", *lengths, "-o", "out.npz", "--json")["notes"]
    assert [note for note in notes if "is the box in nm?" in note] == (
        [f"{density}, where liquids and solids have 20 to 200: is the box in nm?"]
        if density
        else []
    )


def test_virtual_sites_are_no_atoms(succeed, folder):
    system, nonbonded, topology = openmm.System(), openmm.NonbondedForce(), app.Topology()
    residue = topology.addResidue("DIM", topology.addChain())
    for k, mass in enumerate((12.0, 12.0, 0.0)):
        system.addParticle(mass)
        topology.addAtom(f"C{k}", app.Element.getBySymbol("C"), residue)
        nonbonded.addParticle(0.0, 0.3, 0.1)
    system.setVirtualSite(2, openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5))
    nonbonded.setNonbondedMethod(nonbonded.PME)
    system.addForce(nonbonded)
    system.setDefaultPeriodicBoxVectors(*(20 * np.eye(3)))
    (folder / "dimer.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(folder / "dimer.pdb", "w") as file:
        app.PDBFile.writeFile(
            topology, np.array([[1.0, 1, 1], [1.2, 1, 1], [1.1, 1, 1]]) * unit.nanometer, file
        )
    density, charges = succeed("convert", "dimer.xml", "dimer.pdb", "-o", "out.npz", "--json")[
        "notes"
    ]
    assert density.startswith("2 atoms in 8000 nm^3: 0.00025 atoms per nm^3")
    assert charges == "all charges are zero: there is no Coulomb interaction"


@each_command
def test_charges_of_zero_are_noted(command, succeed, folder):
    """Converted or not; an offset at its default counts."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    for k in range(force.getNumParticles()):
        force.setParticleParameters(k, 0.0, *force.getParticleParameters(k)[1:])
    (folder / "neutral.xml").write_text(openmm.XmlSerializer.serialize(system))
    expected = ("periodic", ["all charges are zero: there is no Coulomb interaction"])
    assert noted(succeed, command, "neutral.xml", "water.pdb") == expected
    force.addGlobalParameter("lambda", 1.0)
    for k, scale in (0, 0.5), (1, -0.5):
        force.addParticleParameterOffset("lambda", k, scale, 0.0, 0.0)
    fmm.use_fmm(system)
    (folder / "offset.xml").write_text(openmm.XmlSerializer.serialize(system))
    assert noted(succeed, command, "offset.xml", "water.pdb") == ("periodic", [])


@pytest.mark.slow
@each_command
def test_a_shortened_cutoff_is_named(command, succeed):
    argv = (*WATER, "--box", "1.83", "2.1", "2.2")
    expected = (
        "cutoff shortened to 0.897 nm, from 0.9 nm: "
        "it must be less than half of the smallest box width, 1.83 nm"
    )
    assert noted(succeed, command, *argv) == ("periodic", [expected])
    assert noted(succeed, command, *argv, "--cutoff", "0.7") == ("periodic", [])


# checkpoints


SIMULATION = (
    *("run", "system.xml", "water.pdb", "--platform", "Reference", "--timestep", "0.0005"),
    *("--interval", "4", "--seed", "7"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ensemble"), [("run.chk", "npt"), ("run.xml", "nve"), ("run.chk", "nve")]
)
def test_a_restarted_run_goes_on_where_it_was(name, ensemble, succeed, tmp_path):
    """The binary checkpoint with the random numbers of thermostat and barostat; log and trajectory
    are those of one run."""
    mdtraj = pytest.importorskip("mdtraj")

    def run(folder, steps, *options):
        folder.mkdir(exist_ok=True)
        named = {"--log": "run.csv", "--trajectory": "run.xtc", "--checkpoint": name}
        outputs = [word for key, value in named.items() for word in (key, str(folder / value))]
        argv = (*SIMULATION, "--ensemble", ensemble, "--steps", str(steps), *outputs, *options)
        return succeed(*argv, "--json")

    whole = run(tmp_path / "whole", 16)
    run(tmp_path / "parts", 8)
    parts = run(tmp_path / "parts", 16, "--restart", str(tmp_path / "parts" / name))
    assert parts["steps"] == 16
    assert parts["final_total_energy"] == pytest.approx(whole["final_total_energy"], rel=1e-9)
    logs = [
        np.genfromtxt(tmp_path / each / "run.csv", delimiter=",", skip_header=1)
        for each in ("whole", "parts")
    ]
    assert logs[0][:, 0].tolist() == [0, 4, 8, 12, 16]
    assert logs[1] == pytest.approx(logs[0], rel=1e-9)
    topology = mdtraj.Topology.from_openmm(small_water()[0])
    frames = [
        mdtraj.load(tmp_path / each / "run.xtc", top=topology).xyz for each in ("whole", "parts")
    ]
    assert len(frames[0]) == 4
    assert frames[1] == pytest.approx(frames[0], abs=2e-3)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_the_pressure_of_a_run(succeed, fail, tmp_path):
    """Rows as ``pressure_tensor`` gives them, also of a run that was continued."""
    log, checkpoint = tmp_path / "pressure.csv", str(tmp_path / "run.xml")
    argv = (*SIMULATION, "--pressure-log", str(log), "--interval", "4", "--seed", "3")
    result = succeed(*argv, "--steps", "4", "--checkpoint", checkpoint, "--json")
    succeed(*argv, "--steps", "8", "--restart", checkpoint)
    rows = np.genfromtxt(log, delimiter=",", names=True)
    assert rows["step"].tolist() == [0, 4, 8]
    assert result["mean_pressure_bar"] == pytest.approx(rows["pressure"][1])
    trace = rows["xx"] + rows["yy"] + rows["zz"]
    assert rows["pressure"] == pytest.approx(trace / 3)
    system = openmm.XmlSerializer.deserialize(Path("system.xml").read_text())
    fmm.use_fmm(system).setForceGroup(1)
    context = openmm.Context(
        system,
        openmm.VerletIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    context.setState(openmm.XmlSerializer.deserialize(Path(checkpoint).read_text()))
    expected = fmm.pressure_tensor(context)
    assert rows["xy"][1] == pytest.approx(0.5 * (expected[0, 1] + expected[1, 0]), rel=1e-6)
    assert rows["zz"][1] == pytest.approx(expected[2, 2], rel=1e-6)
    message = fail("run", *WATER, "--pressure-log", str(log), "--log", str(log))
    assert "--pressure-log and --log are one file" in message


@pytest.mark.slow
def test_a_run_that_ended_between_log_and_checkpoint(succeed, fail, tmp_path):
    """Rows after the checkpoint are written anew, whole ones and one that was cut short."""
    log, checkpoint = tmp_path / "run.csv", str(tmp_path / "run.chk")
    argv = (*SIMULATION, "--log", str(log), "--checkpoint", checkpoint)
    succeed(*argv, "--steps", "8")
    rows = log.read_text()
    log.write_text(rows + rows.splitlines()[-1].replace("8,", "12,", 1) + "\n16,0.0")
    succeed(*argv, "--steps", "16", "--restart", checkpoint)
    assert log.read_text().startswith(rows)
    steps = [line.split(",")[0] for line in log.read_text().splitlines()[1:]]
    assert steps == ["0", "4", "8", "12", "16"]
    log.write_text("a,b\n1,2\n")
    line = fail(*argv, "--steps", "24", "--restart", checkpoint)
    assert f"cannot read {log}: this is not a log of fmm-openmm run" in line


def test_a_restart_that_is_refused(fail, succeed, tmp_path):
    checkpoint = str(tmp_path / "run.chk")
    succeed(*SIMULATION, "--steps", "4", "--checkpoint", checkpoint)
    restart = (*SIMULATION, "--restart", checkpoint)
    assert f"--steps must be above 4, at which {checkpoint} is, got 4" in fail(
        *restart, "--steps", "4"
    )
    assert "--minimize is for the start of a run" in fail(*restart, "--minimize", "5")
    assert "--trajectory must end in .dcd or .xtc with --restart" in fail(
        *restart, "--trajectory", str(tmp_path / "run.pdb")
    )
    assert f"--log {checkpoint} is a file that is read" in fail(*restart, "--log", checkpoint)
    assert "no such file: nothing.chk" in fail(*SIMULATION, "--restart", "nothing.chk")
    assert "cannot read water.pdb: " in fail(*SIMULATION, "--restart", "water.pdb")
    assert "cannot read system.xml: " in fail(*SIMULATION, "--restart", "system.xml")


@pytest.mark.slow
def test_velocities_of_a_state(succeed, folder):
    """A simulation begins with them, unless it minimises."""
    state = state_of_water()
    (folder / "moving.xml").write_text(openmm.XmlSerializer.serialize(state))
    _, system, positions = small_water()
    context = openmm.Context(system, openmm.LangevinMiddleIntegrator(300, 1, 0.0001))
    context.setState(state)
    kinetic = context.getState(energy=True).getKineticEnergy()._value
    argv = ("run", "system.xml", "moving.xml", "--timestep", "0.0001", "--steps", "1")
    argv += ("--interval", "1", "--log", "moving.csv", "--trajectory", "moving.pdb")
    for options, same in ((), True), (("--minimize", "1", "--seed", "5"), False):
        succeed(*argv, *options)
        with open("moving.csv") as file:
            found = float(next(csv.DictReader(file))["kinetic_energy"])
        assert (found == pytest.approx(kinetic, rel=1e-3)) is same
    assert app.PDBFile("moving.pdb").topology.getNumAtoms() == len(positions)


def test_the_volume_is_drawn_in_npt():
    samples = [run.Sample(k, 0.1 * k, 0.0, 0.0, 1.0, 300.0, 8.0 + k) for k in range(3)]
    for ensemble, panels in ("nvt", 2), ("npt", 3):
        drawing = terminal.figure("out.png")
        run.draw(drawing, samples, ensemble)
        assert len(drawing.axes) == panels
    assert drawing.axes[2].lines[0].get_ydata().tolist() == [8.0, 9.0, 10.0]
    assert drawing.axes[2].get_ylabel().startswith("volume")


# validate


def test_validate(succeed, tmp_path):
    result = succeed("validate", *WATER, "--json", "--plot", str(tmp_path / "errors.png"))
    assert result["reference"] == "an Ewald sum"
    assert result["passed"] is True
    assert 1e-6 < result["fmm"]["relative_rms_force_error"] < 5e-4
    assert 1e-5 < result["pme"]["relative_rms_force_error"] < 5e-3
    assert result["parameters"]["order"] > 1
    assert (tmp_path / "errors.png").stat().st_size > 1000


@pytest.mark.slow
def test_validate_in_a_box_too_large_for_pme(succeed, fail):
    """An Ewald sum is the reference, and PME is left out by name."""
    argv = ("validate", "system.xml", "water.pdb", "--box", "200", "200", "200")
    result = succeed(*argv, "--json")
    assert (result["reference"], result["passed"], result["pme"]) == ("an Ewald sum", True, None)
    assert result["pme_left_out"].startswith("left out, as it would need a grid of ")
    assert "take 'ewald'" in fail(*argv, "--reference", "pme")


@pytest.mark.slow
def test_validate_chooses_a_reference_that_fits(succeed, monkeypatch):
    """Above the limit of the Ewald sum PME, unless its grid is too large."""
    monkeypatch.setattr(validate, "EWALD_LIMIT", 100)
    argv = ("validate", "system.xml", "water.pdb", "--json")
    assert succeed(*argv)["reference"].startswith("PME at 1e-07")
    assert succeed(*argv, "--box", "100", "100", "100")["reference"] == "an Ewald sum"


@pytest.mark.slow
def test_validate_takes_its_numbers_from_the_system_and_the_options(succeed):
    argv = (
        "validate",
        "system.xml",
        "water.pdb",
        "--tolerance",
        "1e-6",
        "--pme-tolerance",
        "1e-5",
        "--json",
    )
    by_ewald, by_pme = succeed(*argv), succeed(*argv, "--reference", "pme")
    assert by_pme["reference"].startswith("PME at 1e-07")
    assert by_pme["reference_energy"] == pytest.approx(by_ewald["reference_energy"], rel=1e-7)
    assert (
        by_ewald["fmm"]["relative_rms_force_error"]
        < 1e-6
        < by_ewald["pme"]["relative_rms_force_error"]
    )
    exact = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    energy = ewald_sum(exact.positions, exact.charges, exact.box_vectors, exact.exclusions).energy
    assert by_ewald["reference_energy"] == pytest.approx(energy, rel=1e-9)


@pytest.mark.slow
def test_validate_with_pme_parameters_of_the_system(succeed, folder):
    """PME's parameters in the System are used, unless a tolerance is given."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    next(
        force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)
    ).setPMEParameters(3.0, 8, 8, 8)
    (folder / "coarse.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = ("validate", "coarse.xml", "water.pdb", "--json")
    as_set, named = succeed(*argv)["pme"], succeed(*argv, "--pme-tolerance", "1e-4")["pme"]
    assert (as_set["method"], named["method"]) == ("PME as set", "PME 0.0001")
    assert named["relative_rms_force_error"] < 2e-4 < 2e-3 < as_set["relative_rms_force_error"]


@pytest.mark.slow
def test_a_system_with_an_fmm_force_alone(succeed, tmp_path):
    _, system, positions = small_water()
    exact = fmm.ChargeSystem.from_openmm(system, positions)
    index = [type(force) for force in system.getForces()].index(openmm.NonbondedForce)
    system.addForce(fmm.FMMForce.from_nonbonded(system.getForce(index)))
    system.removeForce(index)
    (tmp_path / "own.xml").write_text(openmm.XmlSerializer.serialize(system))
    files = (str(tmp_path / "own.xml"), "water.pdb")
    result = succeed("validate", *files, "--json")
    assert result["passed"] is True
    energy = ewald_sum(exact.positions, exact.charges, exact.box_vectors, exact.exclusions).energy
    assert result["reference_energy"] == pytest.approx(energy, rel=1e-9)
    output = str(tmp_path / "own.npz")
    assert succeed("convert", *files, "-o", output, "--json")["exclusions"] == len(exact.exclusions)
    assert np.array_equal(fmm.ChargeSystem.load(output).charges, exact.charges)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("validate",), ("run", "--steps", "2", "--interval", "2", "--timestep", "0.0001")]
)
def test_a_converted_system_keeps_its_options(command, succeed, tmp_path):
    """And its charges, which may have been changed since; unless options are given."""
    name, *rest = command
    _, system, _ = small_water()
    force = fmm.use_fmm(system, tolerance=1e-5)
    for atom in range(0, 3 * 20):
        force.setParticleParameters(atom, 0.0)
    (tmp_path / "tight.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = (name, str(tmp_path / "tight.xml"), "water.pdb", *rest, "--json")
    for options, tolerance in ((), 1e-5), (("--tolerance", "0.01"), 1e-2):
        result = succeed(*argv, *options)
        used = result["parameters"] if name == "validate" else result["fmm"]
        assert 0.01 * tolerance < used["expected_error"] <= tolerance
        if name == "validate":
            charges = fmm.ChargeSystem.from_openmm(system, small_water()[2])
            exact = ewald_sum(
                charges.positions, charges.charges, charges.box_vectors, charges.exclusions
            )
            assert result["tolerance"] == tolerance
            assert result["reference_energy"] == pytest.approx(exact.energy, rel=1e-5)


def test_levels_and_the_bridge(succeed, fail):
    argv = (
        "run",
        "system.xml",
        "water.pdb",
        "--steps",
        "2",
        "--interval",
        "2",
        "--timestep",
        "0.0001",
        "--tolerance",
        "1e-3",
    )
    used = succeed(*argv, "--levels", "1", "--bridge", "host", "--json")["fmm"]
    assert (used["levels"], used["bridge"]) == (1, "host")
    assert "`bridge` must be one of 'auto', 'host', 'native', got 'rope'" in fail(
        *argv, "--bridge", "rope"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`tolerance=1e-05` is out of reach")
def test_validate_fails_beyond_the_tolerance(succeed):
    argv = ("validate", *WATER, "--tolerance", "1e-5", "--order", "3")
    assert succeed(*argv, "--json", code=1)["passed"] is False
    text = succeed(*argv, "--pme-tolerance", "1e-5", code=1)
    assert "FMM MISSES its tolerance of 1e-05; PME 1e-05 has the smaller RMS force error" in text


# run


def test_run_nve(succeed, tmp_path):
    files = {
        "log": tmp_path / "run.csv",
        "trajectory": tmp_path / "run.dcd",
        "plot": tmp_path / "run.png",
    }
    outputs = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    start = ("--minimize", "10", "--equilibrate", "20", "--seed", "7")
    steps = ("--steps", "50", "--interval", "10", "--timestep", "0.001")
    result = succeed("run", *WATER, "--ensemble", "nve", *start, *steps, *outputs, "--json")
    assert result["particles"] == 768
    assert result["ns_per_day"] == pytest.approx(86.4 / result["ms_per_step"])
    assert result["fmm"]["backend"] == "cpu"
    with open(files["log"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30, 40, 50]
    assert float(rows[-1]["time_ps"]) == pytest.approx(0.05)
    energies = np.array([float(row["total_energy"]) for row in rows])
    slope = np.polyfit([float(row["time_ps"]) for row in rows], energies, 1)[0]
    assert result["drift_kJ_mol_ps"] == pytest.approx(slope)
    assert np.ptp(energies) < 0.02 * np.ptp([float(row["potential_energy"]) for row in rows]) + 1.0
    assert files["plot"].stat().st_size > 1000
    frames = pytest.importorskip("mdtraj").load(str(files["trajectory"]), top="water.pdb")
    assert frames.n_frames == 5


@pytest.mark.slow
def test_run_npt_and_nvt(succeed):
    argv = (
        "--steps",
        "50",
        "--interval",
        "25",
        "--minimize",
        "10",
        "--platform",
        "CPU",
        "--tolerance",
        "1e-3",
    )
    result = succeed(
        "run",
        "system.xml",
        "water.pdb",
        "--ensemble",
        "npt",
        *argv,
        "--timestep",
        "0.0005",
        "--json",
    )
    assert result["platform"] == "CPU"
    assert result["mean_volume"] == pytest.approx(np.prod(BOX.diagonal()), rel=0.1)
    assert "drift_kJ_mol_ps" not in result
    text = succeed("run", *WATER, *argv)
    assert "ns a day" in text
    assert "drift" not in text


@pytest.mark.slow
def test_run_replaces_barostats_and_thermostats(succeed):
    """The ensemble is what the command line says."""
    with open("system.xml") as file:
        system = openmm.XmlSerializer.deserialize(file.read())
    system.addForce(openmm.MonteCarloBarostat(100.0, 300.0, 1))
    system.addForce(openmm.AndersenThermostat(300.0, 1.0))
    with open("baths.xml", "w") as file:
        file.write(openmm.XmlSerializer.serialize(system))
    argv = (
        "baths.xml",
        "water.pdb",
        "--steps",
        "4",
        "--interval",
        "1",
        "--timestep",
        "0.0005",
        "--tolerance",
        "1e-3",
    )
    assert (
        "Left out of the System, as --ensemble is nve: MonteCarloBarostat, AndersenThermostat"
        in succeed("run", *argv, "--ensemble", "nve", "--log", "run.csv")
    )
    with open("run.csv", newline="") as file:
        assert len({row["volume"] for row in csv.DictReader(file)}) == 1
    succeed("run", *argv, "--ensemble", "npt", "--pressure", "1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--seed", "99999999999"), "--seed must fit into 32 bits, got 99999999999"),
        (("--ensemble", "npt", "--pressure", "nan"), "--pressure must be finite, got nan"),
        (("--temperature", "inf"), "--temperature must be finite, got inf"),
    ],
)
def test_run_refuses(argv, message, fail):
    assert message in fail("run", *WATER, *argv)


def test_one_ion(succeed, tmp_path):
    """Nothing moves that has a temperature, and the exact force is zero."""
    system, nonbonded, topology = openmm.System(), openmm.NonbondedForce(), app.Topology()
    topology.addAtom(
        "NA", app.Element.getBySymbol("Na"), topology.addResidue("NA", topology.addChain())
    )
    system.addParticle(22.99)
    nonbonded.addParticle(1.0, 0.3, 0.1)
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    for force in (nonbonded, openmm.CMMotionRemover()):
        system.addForce(force)
    system.setDefaultPeriodicBoxVectors(*(3 * np.eye(3)))
    (tmp_path / "ion.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(tmp_path / "ion.pdb", "w") as file:
        app.PDBFile.writeFile(topology, np.array([[1.0, 1.1, 1.2]]) * unit.nanometer, file)
    argv = (str(tmp_path / "ion.xml"), str(tmp_path / "ion.pdb"))
    assert succeed("run", *argv, "--steps", "2", "--json")["mean_temperature"] is None
    assert succeed("validate", *argv, "--json")["passed"]


@pytest.mark.slow
def test_run_says_where_it_failed(fail):
    line = fail(
        "run",
        "system.xml",
        "water.pdb",
        "--ensemble",
        "nve",
        "--timestep",
        "0.01",
        "--steps",
        "500",
    )
    assert "the simulation failed near step" in line
    assert "--minimize" in line


def test_plot_without_matplotlib(fail, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "--plot needs matplotlib: pip install 'fmm_openmm[plot]'" in fail(
        "run", *WATER, "--plot", "out.png"
    )
