"""Files: a round trip is exact, and whatever is wrong with a file is said."""

import errno
import os

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.convert import charge_system, storage


@pytest.fixture
def full():
    rng = np.random.default_rng(5)
    box = np.array([[2.0, 0, 0], [-0.5, 2, 0], [0.6, 0.5, 3]])
    return fmm.ChargeSystem(
        rng.normal(size=20), rng.normal(size=(20, 3)), box, [[0, 1], [3, 7]], True
    )


@pytest.fixture
def saved(full, tmp_path):
    path = tmp_path / "system.npz"
    full.save(path)
    return path


def test_round_trip_is_exact(full, saved):
    again = fmm.ChargeSystem.load(saved)
    for name in ("charges", "positions", "box_vectors", "exclusions"):
        assert np.array_equal(getattr(again, name), getattr(full, name))
        assert getattr(again, name).dtype == getattr(full, name).dtype
    assert again.exclusions_periodic is True


def test_what_is_absent_stays_absent(tmp_path):
    fmm.ChargeSystem([1.0, -1.0]).save(str(tmp_path / "bare"))
    again = fmm.ChargeSystem.load(str(tmp_path / "bare"))
    assert again.positions is None
    assert again.box_vectors is None
    assert again.exclusions.shape == (0, 2)
    assert os.listdir(tmp_path) == ["bare"]


def test_a_file_is_replaced_whole_or_not_at_all(full, saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*/system\.npz'$"):
        fmm.ChargeSystem([3.0]).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_what_cannot_be_written_is_named_as_given(full, saved, tmp_path):
    for path in (tmp_path / "nosuch" / "s.npz", saved / "s.npz", tmp_path):
        with pytest.raises(OSError) as error:
            full.save(path)
        assert error.value.filename == str(path) and error.value.filename2 is None
    assert os.listdir(tmp_path) == [saved.name]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        fmm.ChargeSystem.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"not a zip file at all", b"\x93NUMPY\x01\x00garbage", b"\x80\x04N."]
)
def test_foreign_bytes(tmp_path, content):
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.npz is not a fmm_openmm ChargeSystem file"):
        fmm.ChargeSystem.load(path)


def test_foreign_npz(tmp_path):
    np.savez(tmp_path / "other.npz", charges=np.ones(3))
    with pytest.raises(ValueError, match=r"other\.npz is not a fmm_openmm ChargeSystem file"):
        fmm.ChargeSystem.load(tmp_path / "other.npz")


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "objects.npz", charges=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"objects\.npz is damaged or not a .*allow_pickle=False"):
        fmm.ChargeSystem.load(tmp_path / "objects.npz")


def test_newer_version(full, tmp_path):
    storage.write(
        tmp_path / "new.npz",
        charge_system.KIND,
        charge_system.VERSION + 1,
        {"charges": full.charges},
    )
    with pytest.raises(
        ValueError, match="newer fmm_openmm: its format version is 2, this one reads up to 1"
    ):
        fmm.ChargeSystem.load(tmp_path / "new.npz")


def test_unknown_members(full, tmp_path):
    arrays = {"charges": full.charges, "masses": full.charges}
    storage.write(tmp_path / "odd.npz", charge_system.KIND, charge_system.VERSION, arrays)
    with pytest.raises(ValueError, match="holds charges, masses"):
        fmm.ChargeSystem.load(tmp_path / "odd.npz")


def test_edited_values(saved):
    with np.load(saved) as members:
        arrays = dict(members)
    arrays["charges"][3] += 1e-12
    np.savez(saved, **arrays)
    with pytest.raises(ValueError, match="damaged: its checksum does not match"):
        fmm.ChargeSystem.load(saved)


def test_marks_missing(saved):
    with np.load(saved) as members:
        arrays = dict(members)
    del arrays["checksum"]
    np.savez(saved, **arrays)
    with pytest.raises(ValueError, match="damaged: it names no version or no checksum"):
        fmm.ChargeSystem.load(saved)


def test_cut_short_anywhere(saved):
    whole = saved.read_bytes()
    for size in range(0, len(whole), 37):
        saved.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"system\.npz is"):
            fmm.ChargeSystem.load(saved)


@pytest.mark.slow
def test_flipped_bits_anywhere(full, saved):
    """Some bytes of a zip mean nothing (dates, say); every other change must be an error, never
    another system."""
    whole = bytearray(saved.read_bytes())
    refused = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x14
        saved.write_bytes(damaged)
        try:
            found = fmm.ChargeSystem.load(saved)
        except ValueError:
            refused += 1
        else:
            for name in (
                "charges",
                "positions",
                "box_vectors",
                "exclusions",
                "exclusions_periodic",
            ):
                assert np.array_equal(getattr(found, name), getattr(full, name))
    assert refused > len(whole) / 7 / 2
