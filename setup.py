"""Settings that depend on others: in a package index the links of the README, and those of the
index itself, lead to the project's page, where setup.cfg names one as its ``url``."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

FOLDER = Path(__file__).parent


def absolute_links(text: str, url: str, version: str) -> str:
    """Markdown whose relative links lead to files of a version at ``url``, and whose images are the
    files themselves."""

    def absolute(link):
        image, name, target = link.groups()
        return f"{image}[{name}]({url}/{'raw' if image else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", absolute, text)


def project_urls(url: str, version: str) -> dict[str, str]:
    """Links of the package in an index."""
    return {
        "Source": url,
        "Documentation": f"{url}/tree/v{version}/docs",
        "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }


if __name__ == "__main__":
    settings = ConfigParser()
    settings.read(FOLDER / "setup.cfg", encoding="utf-8")
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    url = settings.get("metadata", "url", fallback="").rstrip("/")
    version, urls = settings["metadata"]["version"], {}
    if url:
        readme, urls = absolute_links(readme, url, version), project_urls(url, version)
    setup(long_description=readme, project_urls=urls)
