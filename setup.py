"""What setup.cfg cannot say: in a package index the links of the README lead to the project's page,
where setup.cfg names one as its ``url``."""

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


if __name__ == "__main__":
    settings = ConfigParser()
    settings.read(FOLDER / "setup.cfg", encoding="utf-8")
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    url = settings.get("metadata", "url", fallback="").rstrip("/")
    if url:
        readme = absolute_links(readme, url, settings["metadata"]["version"])
    setup(long_description=readme)
