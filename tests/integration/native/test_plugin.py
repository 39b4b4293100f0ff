"""Which library of the native plugin is loaded, and where one is kept; needs neither OpenMM's
headers nor a GPU."""

import hashlib
import json
import logging
import os
import re
import shutil
import stat
import sys
from types import SimpleNamespace

import openmm
import pytest

from fmm_openmm import UnsupportedError, cache, use_fmm
from fmm_openmm.integration.native import callbacks, plugin
from tests.support.folders import disown

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="Windows has no such modes, and no plugin"
)

COMPILER = """
import os, shutil, sys, _ctypes
with open(os.environ["LOG"], "a") as log:
    print("compiled", file=log)
os.umask(0o002)
shutil.copyfile(_ctypes.__file__, sys.argv[sys.argv.index("-o") + 1])
"""
"""Stands for the compiler: what it makes is a library that can be loaded."""


class Builds:
    """How often the plugin was compiled."""

    def __init__(self, log):
        self.log = log

    def __len__(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache folder, which is not there yet."""
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def builds(tmp_path, monkeypatch, caplog):
    """Counts what is compiled."""
    import _ctypes

    if not hasattr(_ctypes, "__file__"):
        pytest.skip("needs a Python whose `_ctypes` is a library")
    own = tmp_path / "temporary"
    own.mkdir(mode=0o700)
    monkeypatch.setattr(plugin, "private_folder", lambda: own)
    monkeypatch.setattr(
        plugin, "command", lambda: ([sys.executable, "-c", COMPILER], ["an option"])
    )
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    caplog.set_level(logging.WARNING, "fmm_openmm")
    return Builds(tmp_path / "log")


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_library_is_the_users_alone(folder, builds, caplog, tmp_path):
    for _ in range(2):
        library = plugin.build()
        assert library.parent == folder
    assert plugin._load()
    assert len(builds) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache.why_unsafe(library) is None  # whatever the compiler's umask was
    assert [path.name for path in folder.iterdir()] == [library.name]
    assert not list((tmp_path / "temporary").iterdir())
    assert not caplog.records


def test_a_link_to_a_folder_of_the_user_is_followed(folder, tmp_path):
    (tmp_path / "scratch").mkdir(mode=0o755)
    folder.symlink_to(tmp_path / "scratch")
    assert plugin.build().parent == tmp_path / "scratch"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_can_write_is_refused(folder, builds, caplog, tmp_path, mode):
    trap = plugin.build()
    folder.chmod(mode)
    assert plugin.build() == tmp_path / "temporary" / trap.name
    assert messages(caplog) == [
        f"the native plugin is not kept in {folder}, since other users can write to it (mode "
        f"{mode:04o}): it is built for this process alone"
    ]
    assert len(builds) == 2
    plugin.build()
    assert len(builds) == 2  # once a process


def test_a_folder_of_another_user_is_refused(folder, caplog, tmp_path, monkeypatch):
    plugin.build()
    disown(folder, monkeypatch)
    if os.geteuid() == 0:  # else the private folder would be another user's as well
        assert plugin.build().parent == tmp_path / "temporary"
    else:
        assert plugin._kept() == tmp_path / "temporary"
    owner = folder.stat().st_uid
    assert messages(caplog) == [
        f"the native plugin is not kept in {folder}, since it belongs to user {owner}: "
        "it is built for this process alone"
    ]


def test_a_library_that_others_can_write_is_replaced(folder, builds, caplog):
    library = plugin.build()
    library.write_bytes(b"a trap")
    library.chmod(0o666)
    assert plugin.build() == library
    assert library.read_bytes() != b"a trap"
    assert cache.why_unsafe(library) is None
    assert messages(caplog) == [
        f"{library} is not loaded, since other users can write to it (mode 0666): "
        "building the native plugin anew"
    ]
    assert len(builds) == 2


@pytest.mark.parametrize("content", [b"", b"not a library\n" * 1000])
def test_a_damaged_library_is_named_and_built_anew(folder, builds, caplog, content):
    library = plugin.build()
    library.write_bytes(content)
    assert plugin._load()
    (line,) = messages(caplog)
    assert re.match(rf"{re.escape(str(library))}: .*: building the native plugin anew$", line)
    assert len(builds) == 2


@pytest.mark.parametrize(
    "reason", ["libcuda.so.1: cannot open shared object file", "{library}: undefined symbol: f"]
)
def test_what_the_library_lacks_does_not_build_it_anew(folder, builds, monkeypatch, reason):
    def failing(path):
        raise OSError(reason.format(library=path))

    monkeypatch.setattr(plugin.ctypes, "CDLL", failing)
    with pytest.raises(UnsupportedError, match="the native plugin cannot be loaded: "):
        plugin._load()
    assert len(builds) == 1


def test_where_the_folder_cannot_be_made(folder, builds, caplog, tmp_path):
    folder.write_text("a file")
    assert plugin.build().parent == tmp_path / "temporary"
    (line,) = messages(caplog)
    assert line.startswith(
        f"the native plugin is not kept in {folder}, since [Errno 17] File exists: "
    )


def test_where_the_folder_cannot_be_written(folder, builds, caplog, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plugin.shutil, "copy", full)
    assert plugin.build().parent == tmp_path / "temporary"
    assert plugin._load()
    assert messages(caplog)[:1] == [
        f"the native plugin is not kept in {folder} ([Errno 28] No space left on device): "
        "it is built for this process alone"
    ]
    assert not list(folder.iterdir())


def test_without_a_cache_folder(builds, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("FMM_OPENMM_CACHE", "off")
    assert {plugin.build().parent for _ in range(2)} == {tmp_path / "temporary"}
    assert len(builds) == 1
    assert not caplog.records


# libraries that came with the package


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """The package's library for the OpenMM that is there, one of OpenMM's wheels."""
    import _ctypes

    folder = tmp_path / "package" / "lib"
    folder.mkdir(parents=True)
    library = folder / "library.so"
    shutil.copyfile(_ctypes.__file__, library)
    library.chmod(0o755)
    entry = {"file": library.name, "sha256": hashlib.sha256(library.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({plugin.minor_version(): entry}))
    code = folder.parent / "plugin.py"
    code.touch(0o644)  # that of a checkout may be writable for a group
    monkeypatch.setattr(plugin, "__file__", str(code))
    monkeypatch.setattr(plugin, "_folder", lambda: folder.parent)
    monkeypatch.setattr(openmm.version, "openmm_library_path", "/site-packages/OpenMM.libs/lib")
    return library


def test_the_library_of_the_package_is_loaded(folder, builds, brought, caplog):
    found = plugin._find()
    assert found.handle
    assert found.origin == f"{brought} came with fmm_openmm, for OpenMM {plugin.minor_version()}"
    assert len(builds) == 0
    assert not caplog.records


def test_the_library_is_trusted_as_far_as_the_package_is(
    folder, builds, brought, tmp_path, monkeypatch
):
    """A colleague may have installed both."""
    code = tmp_path / "plugin.py"
    for path in (code, brought):
        path.touch()
        path.chmod(0o775)
    monkeypatch.setattr(plugin, "__file__", str(code))
    assert str(brought) in plugin._find().origin
    assert len(builds) == 0


def no_compiler():
    raise UnsupportedError("no compiler")


@pytest.mark.parametrize(
    ("harm", "reason", "warns"),
    [
        (
            lambda library, _: library.write_bytes(b"half of it"),
            "{library} is not loaded, since it is damaged",
            True,
        ),
        (
            lambda library, _: library.chmod(0o666),
            "{library} is not loaded, since other users can write to it",
            True,
        ),
        (disown, "{library} is not loaded, since it belongs to user ", True),
        (
            lambda library, _: library.unlink(),
            "[Errno 2] No such file or directory: '{library}'",
            False,
        ),
        (
            lambda library, _: (library.parent / "manifest.json").write_text(
                '{"8.1": {}, "8.2": {}}'
            ),
            f"fmm_openmm brings libraries for OpenMM 8.1, 8.2, not {plugin.minor_version()}",
            False,
        ),
        (
            lambda library, _: (library.parent / "manifest.json").unlink(),
            "fmm_openmm was installed from its sources",
            False,
        ),
        (
            lambda _, patch: patch.setattr(openmm.version, "openmm_library_path", "/conda/lib"),
            "OpenMM, in /conda/lib, is not that of its wheels",
            False,
        ),
    ],
    ids=[
        "damaged",
        "writable",
        "another user's",
        "missing",
        "another OpenMM",
        "source install",
        "conda",
    ],
)
def test_where_it_does_not_fit_another_is_built(
    folder, builds, brought, caplog, monkeypatch, harm, reason, warns
):
    harm(brought, monkeypatch)
    reason = reason.format(library=brought)
    origin = plugin._find().origin
    assert origin.startswith(
        f"it was built here for OpenMM {openmm.version.short_version}, since {reason}"
    )
    assert len(builds) == 1
    assert len(caplog.records) == warns
    monkeypatch.setattr(plugin, "command", no_compiler)
    with pytest.raises(UnsupportedError, match=re.escape(f"no compiler ({reason}")):
        plugin._find()


def test_a_library_that_cannot_be_loaded_is_built(folder, builds, brought):
    content = b"not a library"
    brought.write_bytes(content)
    entry = {"file": brought.name, "sha256": hashlib.sha256(content).hexdigest()}
    (brought.parent / "manifest.json").write_text(json.dumps({plugin.minor_version(): entry}))
    assert str(brought) in plugin._find().origin
    assert len(builds) == 1


@pytest.mark.parametrize(
    ("options", "devices", "warns"), [({}, 1, 1), ({}, 0, 0), ({"bridge": "host"}, 1, 0)]
)
def test_the_host_bridge_is_warned_of(water, monkeypatch, recwarn, options, devices, warns):
    """One warning, before anything is changed, where there is a device and no plugin."""
    platform = SimpleNamespace(getDevices=lambda: [None] * devices)
    monkeypatch.setattr(
        callbacks, "activate", lambda: "the native plugin needs a C++ compiler to be built"
    )
    monkeypatch.setattr(
        callbacks,
        "openmm",
        SimpleNamespace(Platform=SimpleNamespace(getPlatformByName=lambda _: platform)),
    )
    callbacks._warn.cache_clear()
    for _ in range(2):
        use_fmm(openmm.XmlSerializer.clone(water.system), **options)
    messages = [str(each.message) for each in recwarn]
    assert len(messages) == warns
    for text in messages:
        assert (
            "slower than PME: 2.5 ms a step in place of 0.16" in text
            and "needs a C++ compiler" in text
        )
    callbacks._warn.cache_clear()
