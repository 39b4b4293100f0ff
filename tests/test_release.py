"""What a release states more than once is the same everywhere."""

import runpy
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def settings():
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_the_conda_recipe_says_what_setup_cfg_says(settings):
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == settings["metadata"]["version"]
    python, *needed = (line.replace(" ", "") for line in recipe["requirements"]["run"])
    assert python == "python" + settings["options"]["python_requires"]
    assert needed == settings["options"]["install_requires"].split()


def test_the_citation_has_the_version(settings):
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {settings['metadata']['version']}\n" in text


def test_every_link_comes_from_the_url():
    urls = runpy.run_path(str(ROOT / "setup.py"))["project_urls"]("https://example.org/fmm", "1.2")
    for url in urls.values():
        start, _, path = url.partition("https://example.org/fmm")
        assert start == ""
        folder, _, path = path.partition("/v1.2/")
        assert folder in ("", "/issues", "/blob", "/tree")
        assert (ROOT / path).exists()


def test_links_of_the_readme_are_absolute_in_a_package_index():
    absolute_links = runpy.run_path(str(ROOT / "setup.py"))["absolute_links"]
    text = "![steps](docs/steps.svg), [a\nguide](docs/a.md#b), [here](#c), [OpenMM](https://openmm.org)"
    assert absolute_links(text, "https://example.org/fmm", "1.2") == (
        "![steps](https://example.org/fmm/raw/v1.2/docs/steps.svg), "
        "[a\nguide](https://example.org/fmm/blob/v1.2/docs/a.md#b), "
        "[here](#c), [OpenMM](https://openmm.org)"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in readme
    assert "](docs/" not in absolute_links(readme, "https://example.org/fmm", "1.2")
