"""Tables of names and values as HTML, for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), caption: str = "") -> str:
    """A table of text, the first column its row headings."""
    parts = [f"<caption>{escape(caption)}</caption>"] if caption else []
    if header:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        parts.append(f"<tr>{cells}</tr>")
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        parts.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
    return f"<table>{''.join(parts)}</table>"
