"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

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
exclude_patterns = ["_build"]
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


def setup(app):
    """MathML is what browsers draw by themselves: pages need no script and no network."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
