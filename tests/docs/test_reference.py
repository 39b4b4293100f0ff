"""Reference pages name what the code has."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fmm_openmm as fmm
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", fmm.__all__)
def test_the_api_has_every_public_name(name):
    assert f":: fmm_openmm.{name}\n" in (REFERENCE / "api.md").read_text(encoding="utf-8")


MESSAGES = re.findall(
    r"^\| `([^`]+)` \|", (REFERENCE / "messages.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def source():
    """The package's Python and C++, with the pieces of texts on several lines put together."""
    package = Path(find_spec("fmm_openmm").origin).parent  # installed, where CI runs
    files = (path for pattern in ("*.py", "*.cpp") for path in package.rglob(pattern))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_code(message, source):
    for part in message.split(" … "):
        assert part in source, part


def test_messages_are_found():
    assert len(MESSAGES) > 15
