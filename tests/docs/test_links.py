"""Every link within the repository leads to a file that is there, and to one of its headings."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCUMENTS, FENCE, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """The text without fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """Anchors of the headings, by the rule of GitHub and MyST."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in LINK.findall(prose(path)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


def test_links_are_found():
    assert sum(len(LINK.findall(prose(path))) for path in DOCUMENTS) > 100
