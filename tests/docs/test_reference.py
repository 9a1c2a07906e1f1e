"""The pages say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bloomguard
from bloomguard import Guard
from bloomguard.filters.hashing import KeyHash
from bloomguard.filters.layout import Layout
from bloomguard.rebuild.plan import HEADROOM

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = Path(bloomguard.__file__).parent
PAGES = sorted(DOCS.glob("*.md"))


def source():
    """All source of the package, as one text."""
    return "\n".join(file.read_text() for file in sorted(PACKAGE.rglob("*.py")))


def test_every_check_is_on_its_page():
    """An ID that the code can give stands on the page, and none that it cannot."""
    given = set(re.findall(r"bloomguard\.[WI]\d{3}", source()))

    assert set(re.findall(r"`(bloomguard\.[WI]\d{3})`", (DOCS / "checks.md").read_text())) == given


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_can_be_found(page):
    """A page stands in the table of contents, and no line of a block of code is cut off on a phone's screen."""
    index = (DOCS / "index.md").read_text()

    assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE)
    for block in re.findall(r"^```(?:python|console)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        assert max(map(len, block.splitlines())) <= 120


def test_every_make_command_is_there():
    """What pages and workflows call stands in the Makefile, and what that lists stands in CONTRIBUTING."""
    root = DOCS.parent
    pages = [*root.glob("*.md"), *PAGES, *root.glob(".github/workflows/*.yml")]
    called = {
        name
        for page in pages
        for name in re.findall(r"(?:`|\$ |run: )(?:\w+=\S+ )*make ([a-z-]+)", page.read_text())
        if not name.startswith("bench-")
    }
    makefile, contributing = ((root / name).read_text() for name in ("Makefile", "CONTRIBUTING.md"))
    listed = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))

    assert called <= listed
    assert listed - {"help", "bench", "clean"} <= set(re.findall(r"`make ([a-z-]+)`", contributing))


def test_the_sizes_on_the_page_are_those_of_a_rebuild():
    """Of a guard with the default options."""
    page = " ".join((DOCS / "filters.md").read_text().split())
    named = re.search(r"at 0\.1%, (\d+) KiB for 235,000 cities, and (\d+) MiB for 100 million rows", page)

    def bytes_for(rows: int) -> int:
        return Layout.plan(key_hash=KeyHash(8), capacity=int(rows * HEADROOM), error_rate=Guard.error_rate).total_bytes

    assert named
    assert int(named[1]) == round(bytes_for(235_000) / 2**10)
    assert int(named[2]) == round(bytes_for(100_000_000) / 2**20)


def test_the_plan_for_large_sites_is_made_of_what_was_measured():
    """What a server spends on a check and an add, and the rate of a load, are those of the last benchmark."""
    page = (DOCS / "capacity.md").read_text()
    rows = json.loads((DOCS.parent / "bench" / "results" / "redis.json").read_text())
    measured = {row["name"]: row["value"] for row in rows}
    check, add = (round(measured[f"processor time that a server spends on one {what}"]) for what in ("check", "add"))
    loaded, taken = (measured[f"largest load, {what}"] for what in ("bytes", "made and brought"))

    assert f"| {check} µs; {add} µs |" in page
    assert f"| {taken:.2f} s for {loaded / 1e6:.0f} MB |" in page


def test_the_options_of_the_stores_are_on_their_page():
    """Every option that a store takes stands on the settings' page with its default."""
    from inspect import signature

    from bloomguard.stores.file import FileStore
    from bloomguard.stores.redis import RedisStore

    page = (DOCS / "settings.md").read_text()
    for store in (FileStore, RedisStore):
        for name, option in signature(store).parameters.items():
            if name not in ("alias", "clock"):
                row = re.search(rf"^\| `{name}` \| (.*?) \|", page, re.MULTILINE)
                assert row, name
                if type(option.default) in (int, float):
                    assert float(row[1].strip("`")) == option.default
