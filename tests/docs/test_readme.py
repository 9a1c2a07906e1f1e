"""The first pages that a user reads: the README, the start page, and the map in CONTRIBUTING."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
from gazetteer.models import City

from bloomguard.guards import Guard, register, registry
from tests.docs.test_pages import PACKAGE, ROOT

README = (ROOT / "README.md").read_text()
#: Blocks of code, indented ones in lists too.
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short_and_links_to_every_page_on_running_a_site():
    """At most 500 words; all links lead to files."""
    links = set(re.findall(r"\]\((?!https?:)([^)#]+)", README))

    assert all((ROOT / link).exists() for link in links)
    assert len(README.split()) <= 500
    for page in (
        "deploying",
        "troubleshooting",
        "databases",
        "from-null-caching",
        "lookups",
        "routes",
        "views",
        "security",
        "testing",
        "admin",
    ):
        assert f"docs/{page}.md" in links


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_code_of_the_first_pages_runs(page):
    """The settings, and a guard of a model in an app."""
    namespace = {
        "__package__": "gazetteer",
        "__name__": "gazetteer.guards",
        "City": City,
        "Guard": Guard,
        "register": register,
    }
    try:
        for _, block in BLOCK.findall((ROOT / page).read_text()):
            exec(dedent(block), namespace)

        assert namespace["INSTALLED_APPS"][-1] == "bloomguard"
        assert namespace["MIDDLEWARE"][-1] == "bloomguard.middleware.BloomGuardMiddleware"
        assert {guard.name for guard in registry.clashes} == {"city"}  # the example project has one of this name
    finally:
        registry.clashes.clear()


def test_the_map_names_files_that_exist():
    """CONTRIBUTING names each folder and file of the package by its path; each way has at most twelve steps."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    ways = re.split(r"^### ", page, flags=re.MULTILINE)[1:]

    assert [way.partition("\n")[0] for way in ways] == ["A request", "A write", "A rebuild"]
    for way in ways:
        assert len(re.findall(r"^\d+\. ", way, re.MULTILINE)) <= 12
    paths = set(re.findall(r"`([a-z_/]+(?:/|\.py))`", page))
    places = [PACKAGE, PACKAGE / "stores" / "redis"]
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []
