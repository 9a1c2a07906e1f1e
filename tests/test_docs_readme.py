"""The first page that anybody reads."""

from __future__ import annotations

import re

from tests.test_docs_pages import BLOCK, ROOT

README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_its_links_lead_somewhere():
    """What the pages say better is there; every page on running a site can be found from here."""
    links = set(re.findall(r"\]\((?!https?:)([^)#]+)", README))

    assert all((ROOT / link).exists() for link in links)
    assert len(README.splitlines()) < 200
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


def test_the_code_of_the_readme_runs(settings, tmp_path):
    """The filter on its own, and the settings."""
    python = [text for kind, text in BLOCK.findall(README) if kind == "python"]
    namespace = {}
    for block in python:
        exec(block.replace("/var/lib/mysite", str(tmp_path)), namespace)

    assert b"https://example.org/" in namespace["seen"]
    assert set(namespace["BLOOMGUARD"]) == {"STORES"}
