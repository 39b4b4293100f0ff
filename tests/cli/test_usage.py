"""Parsing, help, messages about usage, and files that are written."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fmm_openmm as fmm
from fmm_openmm import cli
from fmm_openmm.cli import bench, main, terminal
from tests.cli.inputs import WATER


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


def test_stdout_stays_unbuffered():
    code = (
        "import os; from fmm_openmm.__main__ import _reserve_stdout; _reserve_stdout(); "
        "print('result'); os.write(1, b'of a library'); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("result\n", "of a library")


BENCHMARKS = [f"bench {name}" for name in bench.BENCHMARKS]


@pytest.mark.slow
def test_a_reader_of_stdout_that_has_ended():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fmm_openmm", "info", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 1
    assert "Broken" not in done.stderr


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("command", ["", *cli.COMMANDS, *BENCHMARKS])
def test_help(command, columns, succeed, monkeypatch):
    """Every help text has at most 80 columns and begins with a command that the parser takes."""
    monkeypatch.setenv("COLUMNS", columns)
    text = succeed(*command.split(), "--help")
    usage, _, example = text.partition("\nexample:\n")
    assert f"fmm-openmm {command}".strip() in usage
    assert max(map(len, text.splitlines())) <= 80
    columns_of_texts = re.findall(r"^( +--(?:no-progress|json\[=FILE\]) +)\w", text, re.MULTILINE)
    assert len({*map(len, columns_of_texts)}) <= 1
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


def test_a_checkpoint_that_may_not_be_replaced(fail, monkeypatch, tmp_path):
    path = tmp_path / "run.chk"
    path.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).is_file())
    line = fail("run", *WATER, "--checkpoint", str(path))
    assert f"no permission to replace {path} in its folder" in line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["explode"], "COMMAND must be one of info, check, validate, run, analyse, potential,"),
        (["info", "--nonsense"], "unrecognized arguments: --nonsense (see fmm-openmm info --help)"),
        (["bench", "nve", "--nonsense"], "--nonsense (see fmm-openmm bench nve --help)"),
        (["run", *WATER, "--steps", "many"], "fmm-openmm: --steps must be an integer, got many"),
        (["run", *WATER, "--order", "1.5"], "fmm-openmm: --order must be an integer, got 1.5"),
        (["run", *WATER, "--cutoff", "long"], "fmm-openmm: --cutoff must be a number, got long"),
        (["run", *WATER, "--grid", "4", "4"], "fmm-openmm: --grid: expected 3 arguments"),
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
            "--tolerance must lie between 1e-10 and 0.1, got 0.0",
        ),
        (
            ["run", *WATER, "--backend", "gpu"],
            "fmm-openmm: --backend must be one of auto, cuda, cpu, reference, got gpu",
        ),
        (["run", *WATER, "--plot", "out.doc"], "--plot must name a file ending in"),
        (
            ["validate", *WATER, "--pme-tolerance", "0"],
            "--pme-tolerance must lie between 0 and 1, got 0.0",
        ),
        (
            ["validate", *WATER, "--tolerance", "1e-9", "--precision", "single"],
            "in single precision, got 1e-09: ask for --precision double",
        ),
        (["validate", *WATER, "--grid", "0", "4", "4"], "--grid must be"),
        (["run", "--steps", "5"], "the following arguments are required: FILE"),
        (["check", "water.pdb"], "check takes no FILE, got water.pdb"),
        (["bench", "nve", "water.pdb"], "unrecognized arguments: water.pdb"),
        (["run", *WATER, "--steps", "1.5"], "--steps must be an integer, got 1.5"),
        (["run", *WATER, "--box", "2", "2", "x"], "--box must be a number, got x"),
        (["info", "--json=nowhere/info.json"], "no such folder: nowhere"),
        (["validate", *WATER, "--bridge", "host"], "unrecognized arguments: --bridge host"),
        (["convert", *WATER], "the following arguments are required: -o/--output"),
        (["convert", *WATER, "-o", "water.txt"], "--output must end in .npz, got water.txt"),
        (["convert", *WATER, "-o", "nowhere/water.npz"], "no such folder: nowhere"),
        (["run", *WATER, "--log", "nowhere/run.csv"], "no such folder: nowhere"),
        (["run", *WATER, "--log", "."], ". is a folder: give the name of a file"),
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


@pytest.mark.parametrize(
    ("file", "option", "text"),
    [
        ("topol.top", [], '#include "part.itp"\n'),
        ("field.xml", ["water.pdb", "--forcefield"], '<ForceField><Include file="part.itp"/>'),
    ],
)
def test_included_files_are_not_overwritten(fail, tmp_path, file, option, text):
    """Here the included file includes the first one again, by a longer path, and the last one."""
    (tmp_path / file).write_text(text)
    (tmp_path / "part.itp").write_text(f'#include "../{tmp_path.name}/{file}"\n#include "ions.itp"')
    (tmp_path / "ions.itp").write_text("; ions")
    for name in ("part.itp", "ions.itp"):
        before = (tmp_path / name).read_text()
        line = fail("validate", *option, str(tmp_path / file), f"--json={tmp_path / name}")
        assert f"--json {tmp_path / name} is a file that is read" in line
        assert (tmp_path / name).read_text() == before


def test_plot_without_matplotlib(fail, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "--plot needs matplotlib: pip install 'fmm_openmm[plot]'" in fail(
        "run", *WATER, "--plot", "out.png"
    )
