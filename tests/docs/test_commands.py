"""Every ``fmm-openmm`` command of a document, in a block or within a sentence, is one that the
parser takes; those of the pages that a user follows are also run (test_pages.py)."""

import re
import shlex

import pytest

from fmm_openmm import cli
from tests.docs.pages import DOCUMENTS, FENCE, blocks


def commands(text: str) -> list[str]:
    """Commands of a document; an ellipsis stands for more of the same and is left out."""
    lines = [
        line
        for block in blocks(text)
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith("fmm-openmm ")
    ]
    inline = re.findall(r"`(fmm-openmm\s[^`]+)`", FENCE.sub("", text))
    return [line.replace("...", "") for line in [*lines, *inline]]


FOUND = [
    pytest.param(command, id=f"{path.name}: {' '.join(command.split())}")
    for path in DOCUMENTS
    if path.name != "CHANGELOG.md"  # which is history
    for command in dict.fromkeys(commands(path.read_text(encoding="utf-8")))
    if "COMMAND" not in command
]


@pytest.mark.parametrize("command", FOUND)
def test_commands_are_understood(command):
    argv = shlex.split(command, comments=True)[1:]
    if argv[-1] not in cli.COMMANDS:  # else it is a command's name alone
        assert cli.parse(argv).command == argv[0]


def test_commands_are_found():
    assert len(FOUND) > 40
