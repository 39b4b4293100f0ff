"""Fenced blocks of the pages that a user follows."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "quickstart.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: of its first line in the page, from 0.
    """

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page, in its order."""
    return [
        Block(found[2].strip(), found[3], text.count("\n", 0, found.start(3)))
        for found in FENCE.finditer(text)
    ]


DOCUMENTS = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
    if "_build" not in path.parts
]
