"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

import ast
import json
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

from fmm_openmm import __version__

project = "fmm_openmm"
author = copyright = "The fmm_openmm developers"
release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_argparse_cli",
    "sphinx_copybutton",
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
highlight_language = "none"  # where a block names none
nb_execution_mode = "force"  # notebooks are stored without results
nb_execution_raise_on_error = True
nb_execution_timeout = 300
html_theme = "furo"
html_title = f"fmm_openmm {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["figures.css"]
templates_path = ["_templates"]
if tags.has("site"):  # noqa: F821, of Sphinx: one of several versions, by .ci/site
    html_sidebars = {
        "**": [
            "sidebar/brand.html",
            "versions.html",
            "sidebar/search.html",
            "sidebar/scroll-start.html",
            "sidebar/navigation.html",
            "sidebar/scroll-end.html",
        ]
    }
exclude_patterns = ["_build", "_templates"]
# packages that are not needed to describe what works with them
autodoc_mock_imports = ["torch", "torch_sim", "metatomic", "metatensor"]
autodoc_member_order = "bysource"
napoleon_use_param = False  # arguments that are explained together stay together
maximum_signature_line_length = 80
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
copybutton_exclude = ".linenos, .gp, .go"


def visit_math(translator, node):
    translator.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def gallery_section(result: Path) -> str:
    """Markdown about one example: its docstring, its picture, what it printed, its source.

    Args:
        result: a file that examples/make_gallery.py wrote.
    """
    script = Path("..", "examples", f"{result.stem}.py")
    text = ast.get_docstring(ast.parse((result.parent.parent / script).read_text("utf-8")))
    stored = json.loads(result.read_text("utf-8"))
    first, _, others = text.partition("\n\n")
    title, colon, _ = first.replace("\n", " ").partition(":")
    output = "\n".join(stored["output"])
    origin = [f"{name} {number}" for name, number in stored["versions"].items()]
    return f"""
({result.stem})=
## {title.rstrip(".")}

{(text if colon else others).replace("``", "`")}

![Picture of {result.stem}.py](gallery/{result.stem}.svg)

```text
{output}
```

{", ".join([*origin, stored["hardware"], stored["date"]])}.

<details><summary><code>{script.name}</code></summary>

```{{literalinclude}} {script.as_posix()}
:language: python
```

</details>
"""


def add_gallery(app, page, source):
    """The results of all examples behind the text of their page."""
    if page == "examples":
        results = sorted(Path(app.srcdir, "gallery").glob("*.json"))
        source[0] += "".join(map(gallery_section, results))


def setup(app):
    """MathML is what browsers draw by themselves: pages need no script and no network."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", add_gallery)
