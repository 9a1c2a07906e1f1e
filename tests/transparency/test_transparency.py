"""A guard changes no answer: the same site with and without guards, in a generated table of combinations.

Each run is a process of its own with settings of its own (``tests/transparency``), for the site has apps and
middleware that no other test wants. One combination by hand, with the full answers of both passes:

    python -m tests.transparency everything route --show --only "plain absent user GET plain"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Under a minute where nothing else runs.
pytestmark = pytest.mark.timeout(900)

#: Each variant of the site with its modes, the slowest first. The door only where it opens, or has to notice something.
VARIANTS = {
    "everything": ["lookup", "route", "auto", "door", "asgi-lookup", "asgi-route"],
    "startproject": ["lookup", "route", "auto", "asgi-lookup", "asgi-auto"],
    "plain": ["lookup", "door", "asgi-door"],
    "login": ["lookup", "route", "auto"],
    "cache": ["lookup", "route", "auto"],
    "walls": ["lookup", "route", "door", "asgi-door"],
    "insiders": ["lookup", "route", "door", "asgi-door"],
    "failing": ["lookup", "route", "auto", "asgi-route"],
}
#: Of how many combinations a variant takes one.
SHARES = {
    "everything": 8,
    "startproject": 6,
    "plain": 7,
    "login": 10,
    "cache": 10,
    "walls": 10,
    "insiders": 10,
    "failing": 12,
}
#: What the statuses of the unguarded site have to show, so that equal answers mean something.
SEEN = {"200", "301", "302", "304", "400", "401", "403", "404", "405", "406", "410", "412", "429", "500", "503"}

#: Found for each mode of a variant, as ``python -m tests.transparency`` writes it.
Found = Mapping[str, Any]


def compare(variant: str, modes: list[str], folder: Path, share: int = 1) -> Found:
    """What differs in these modes of a variant."""
    result = folder / f"{variant}.json"
    arguments = [variant, *modes, "--share", str(share), "--json", str(result)]
    # Without coverage, which would take most of the time.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.transparency", *arguments],
        cwd=ROOT,
        env={**ours, "PYTHONPATH": f"{ROOT}:{ROOT / 'example_project'}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: Found = json.loads(result.read_text())
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each variant's findings; two run at a time."""
    folder = tmp_path_factory.mktemp("transparency")
    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(compare, name, modes, folder, SHARES[name]) for name, modes in VARIANTS.items()}
    return {name: run.result() for name, run in runs.items()}


def test_a_guarded_site_answers_as_it_would_without_guards(found: dict[str, Found]) -> None:
    """Status, headers, body, mails and what is left in the database, in every mode."""
    differences = [
        f"{variant} {mode}: {line}"
        for variant, modes in found.items()
        for mode, result in modes.items()
        for line in result["differences"]
    ]
    compared = sum(modes[mode]["combinations"] for variant, modes in found.items() for mode in VARIANTS[variant])
    distinct = sum(modes["unguarded"]["combinations"] for modes in found.values())
    print(f"\n{compared:,} combinations compared, of {distinct:,} requests in {len(found)} variants of the site")

    assert differences == []
    assert compared >= 5_000


def test_the_unguarded_site_shows_all_that_a_site_can_answer(found: dict[str, Found]) -> None:
    """Answers that are all alike would be equal whatever a guard does; and no view is simply broken."""
    statuses = {status for modes in found.values() for status in modes["unguarded"]["statuses"]}

    assert statuses == SEEN


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_guards_are_in_use(found: dict[str, Found], variant: str) -> None:
    """Each guard knows absent IDs, and spares the database statements: nothing is equal for want of guards."""
    modes = found[variant]
    for mode in VARIANTS[variant]:
        verdicts = modes[mode]["verdicts"]
        for guard in ("entry", "entry-slug", "entry-any", "note", "place"):
            assert verdicts[f"{guard}: absent"] > 2 * verdicts.get(f"{guard}: maybe", 0), (mode, verdicts)

    assert modes["lookup"]["queries"] < 0.8 * modes["unguarded"]["queries"]


def test_a_view_is_skipped_at_its_route_alone(found: dict[str, Found]) -> None:
    """Where routes are named, or found, open views are not called for absent IDs; at the lookup each one is."""
    modes = found["startproject"]

    assert modes["route"]["skipped"] > 10
    assert modes["auto"]["skipped"] > 5
    assert modes["lookup"]["skipped"] == 0


def test_the_door_answers_where_it_is_open(found: dict[str, Found]) -> None:
    """Where nothing but Django's own middleware and page is, absent IDs do not reach Django."""
    for mode in ("door", "asgi-door"):
        door = found["plain"][mode]
        assert door["reached"] < door["combinations"], mode


BROKEN = {
    "BeforeTheView": "status 302 -> 404",
    "BeforeTheRest": "status 404 -> 500",
    "drops_a_header": "headers lost [('x-frame-options', 'DENY')]",
    "adds_a_header": "headers new [('x-bloomguard', 'absent')]",
    "adds_to_vary": "headers new [('vary', 'Cookie, Accept')]",
    "sets_a_cookie": "seen=1; Path=/')]",
    "says_more": "body",
    "says_410": "status 404 -> 410",
    "may_be_kept": "headers new [('cache-control', 'max-age=60')]",
    "stores_nothing": "headers new [('cache-control', 'no-store')]",
    "writes": "old slugs: left [] -> [('written', 'written')]",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the comparison says of guards that are not transparent, and of none."""
    return compare(
        "startproject", ["unguarded", "asgi-unguarded", *BROKEN], tmp_path_factory.mktemp("broken"), share=12
    )


@pytest.mark.parametrize("mode", ["unguarded again", "asgi-unguarded"])
def test_a_site_without_guards_answers_as_itself(broken: Found, mode: str) -> None:
    """What is random or depends on the time is no difference: without guards, none is found."""
    assert broken[mode]["combinations"] > 20
    assert broken[mode]["differences"] == []


@pytest.mark.parametrize(("name", "words"), BROKEN.items())
def test_what_is_not_transparent_is_reported(broken: Found, name: str, words: str) -> None:
    """The comparison sees a guard that says 404 too early, or whose 404 is not the site's."""
    assert any(words in line for line in broken[name]["differences"]), broken[name]["differences"]


def test_a_guard_that_asks_nobody_is_caught_at_every_view_that_demands_something(broken: Found) -> None:
    """The site has views enough that refuse before they look up."""
    pages = {line.split()[0] for line in broken["BeforeTheView"]["differences"]}

    assert len(pages) >= 15
