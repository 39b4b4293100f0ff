"""``fmm-openmm info``, on this machine and on files."""

import base64
import json
import os
import pickle
import re
import tracemalloc
import zlib
from pathlib import Path

import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.cli import info
from tests.cli.inputs import WATER


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
    assert "cannot read water.pdb: not an XML file" in fail("info", "water.pdb")
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
