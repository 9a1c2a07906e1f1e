"""The first pages that a user reads: the README, the start page, and the map in CONTRIBUTING."""

from __future__ import annotations

import json
import re
from textwrap import dedent

import pytest
from gazetteer.demo.report import label
from gazetteer.models import City

from bloomguard.guards import Guard, register, registry
from bloomguard.state.verdicts import Verdict
from tests.docs.test_pages import PACKAGE, ROOT

README = (ROOT / "README.md").read_text()
#: Blocks of code, indented ones in lists too.
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
REPOSITORY = "https://github.com/bloomguard/bloomguard"
RAW = "https://raw.githubusercontent.com/bloomguard/bloomguard/main/"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def figures(name):
    """The rows of one benchmark's last run."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def test_the_readme_is_short_and_its_links_work_anywhere():
    """At most 500 words; all links are absolute, and those into the repository lead to files, the index among them."""
    links = re.findall(r"\]\(([^)\s]+)\)", README) + re.findall(r'src(?:set)?="([^"]+)"', README)
    inside = [link.removeprefix(f"{REPOSITORY}/blob/main/").removeprefix(RAW) for link in links]

    assert len(README.split()) <= 500
    assert all(link.startswith("https://") for link in links)
    assert all((ROOT / link.partition("#")[0]).is_file() for link in inside)
    assert "docs/index.md" in inside


def test_the_readme_and_the_metadata_name_the_same():
    """One repository; the versions of Python and Django that the classifiers name."""
    project = (ROOT / "pyproject.toml").read_text()
    urls = re.findall(
        r'^\w+ = "(https://.*)"$', project.partition("[project.urls]")[2].partition("\n[")[0], re.MULTILINE
    )
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    djangos = re.findall(r'"Framework :: Django :: (\d\.\d)"', project)

    assert urls
    assert all(url.startswith(REPOSITORY) for url in urls)
    assert f"Python {pythons[0]} to {pythons[-1]}" in README
    assert f"Django {', '.join(djangos[:-1])} and {djangos[-1]};" in README


def slugs(page):
    """The anchors of a page's headings, as GitHub and Sphinx make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    """To a file of the repository, and to a heading in it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        name, _, anchor = link.replace("\n", " ").partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), link
        assert not anchor or anchor in slugs(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "api.md"], ids=lambda page: page.name)
def test_the_python_of_a_page_compiles(page):
    """Every block, whatever else runs it; the API page, which is made from the source, shows signatures."""
    for _, block in BLOCK.findall(page.read_text()):
        compile(dedent(block), page.name, "exec")


def test_the_chart_of_the_readme_is_that_of_the_last_demo():
    """On light and on dark ground, with the figures of ``bench/results/demo.json``."""
    rates = [row["value"] for row in figures("demo") if row["name"].endswith(": requests_per_second")]
    assert len(rates) == 5
    for ground in ("light", "dark"):
        chart = (ROOT / "docs" / "images" / f"demo-{ground}.svg").read_text()
        assert [rate for rate in rates if f">{label(rate)}</text>" not in chart] == []


def test_the_figures_of_the_comparison_were_measured():
    """Each cell of the tables under "Measured" is that of ``bench/results/comparison.json``, in two digits or whole."""
    measured = {row["name"]: row["value"] for row in figures("comparison") if row["value"] is not None}
    section = (ROOT / "docs" / "comparison.md").read_text().partition("## Measured")[2].partition("\n## ")[0]
    compared = 0
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        for what, *cells in rows:
            for way, cell in zip(head[1:], cells, strict=True):
                value = measured[f"{what}: {way}"]
                assert cell == (f"{value:,.0f}" if value >= 10 else f"{value:.2g}"), (what, way)
                compared += 1

    assert compared == 28


def test_the_figures_of_a_request_were_measured():
    """The table, and what the README and the FAQ take from it, are those of ``bench/results/requests.json``."""
    measured = {row["name"]: row["value"] for row in figures("requests")}
    page = (ROOT / "docs" / "comparison.md").read_text().partition("## What a request takes")[2].partition("\n## ")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", page, re.MULTILINE)
    ]
    assert len(rows) == 6
    for what, *cells in rows:
        for column, cell in zip(head[1:], cells, strict=True):
            value = measured[f"{column.replace(', WSGI', ':').replace(', ASGI', ': ASGI,')} {what}"]
            assert cell == (f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"), (what, column)

    def extremes(pattern):
        """The lowest and the highest value of all databases."""
        values = [value for name, value in measured.items() if re.search(rf"^\w+{pattern}$", name)]
        return min(values), max(values)

    readme, faq, page = (" ".join(text.split()) for text in (README, (ROOT / "docs" / "faq.md").read_text(), page))
    shares = [100 * share for way in ("", "ASGI, ") for share in extremes(f": {way}absent IDs, lookup")]
    assert "{:.0f} to {:.0f}% of the unguarded time (ASGI: {:.0f} to {:.0f}%)".format(*shares) in readme
    assert extremes(": (ASGI, )?absent IDs, door")[1] < 0.01
    low, high = extremes(": (ASGI, )?existing IDs, (lookup|route|door)")
    for text in (readme, faq):
        assert f"{100 * low - 100:.0f} to {100 * high - 100:.0f}% longer" in text
    assert "{:.0f} to {:.0f} µs".format(*extremes(": get.. of an existing guarded row, guarded lookups")) in faq
    for where in ("lookup", "route", "door"):
        assert "{:.2g} to {:.2g} times".format(*extremes(f", gunicorn: absent IDs, {where}")) in page


@pytest.mark.django_db(transaction=True)
def test_the_code_of_the_start_page_runs(build):
    """The settings, and a guard of two lines, which answers."""
    own = registry["city"]  # the example project has one of this name
    registry.remove(own)
    namespace = {
        "__package__": "gazetteer",
        "__name__": "gazetteer.guards",
        "City": City,
        "Guard": Guard,
        "register": register,
    }
    try:
        for _, block in BLOCK.findall((ROOT / "docs" / "index.md").read_text()):
            exec(dedent(block), namespace)

        assert namespace["INSTALLED_APPS"][-1] == "bloomguard"
        assert namespace["MIDDLEWARE"][-1] == "bloomguard.middleware.BloomGuardMiddleware"
        build("city")
        assert type(registry["city"]) is namespace["CityGuard"]
        assert registry["city"]._meta.fields == (City._meta.pk,)
        assert registry["city"].verdict("1") is Verdict.ABSENT
    finally:
        registry.remove(registry["city"])
        registry.add(own)


def test_the_packages_of_the_compatibility_page_are_tested():
    """Each is in an extra that the suite installs."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    table = page.partition("| package |")[2].partition("\n\n")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]

    assert len(named) >= 9
    assert {name for name in named if f'"{name}' not in extras} == set()


def test_the_apps_of_the_compatibility_page_are_tried():
    """Each has a folder of tests, and is installed from the version on that the page names; no other app is."""
    page = (ROOT / "docs" / "compatibility.md").read_text().partition("| app |")[2].partition("\n\n")[0]
    named = dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \|", page, re.MULTILINE))
    extra = (ROOT / "pyproject.toml").read_text().partition("\ncompatibility = [")[2].partition("\n]")[0]
    folders = {path.name for path in (ROOT / "tests" / "compatibility").glob("with_*")}

    assert named == dict(re.findall(r'"((?:django|easy)-[\w-]+)>=([\d.]+)"', extra))
    tried = {f"with_{name.removeprefix('django-').replace('-', '_')}" for name in named}
    assert tried - folders == {"with_easy_thumbnails"}  # it is tried with django-filer
    assert folders <= tried


def test_the_map_names_files_that_exist():
    """CONTRIBUTING names each folder and file of the package by its path; each way has at most twelve steps."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    ways = re.split(r"^### ", page, flags=re.MULTILINE)[1:]

    assert [way.partition("\n")[0] for way in ways] == ["A request", "How a guard decides", "A write", "A rebuild"]
    for way in ways:
        assert len(re.findall(r"^\d+\. ", way, re.MULTILINE)) <= 12
    paths = set(re.findall(r"`([a-z_/]+(?:/|\.py))`", page))
    places = [PACKAGE, PACKAGE / "stores" / "redis"]
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []
