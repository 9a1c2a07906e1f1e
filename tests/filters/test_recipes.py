"""The recipes in the documentation run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "filter-recipes.md"


def sections():
    """The ``python`` blocks of each section of the page, as one source whose line numbers are the page's."""
    found, title, lines, inside = {}, None, [], False
    for number, line in enumerate(PAGE.read_text().splitlines()):
        if line.startswith("## "):
            title, lines = line[3:], [""] * number
            found[title] = lines
        elif line == "```python":
            inside, line = True, ""
        elif line == "```":
            inside, line = False, ""
        if title and not line.startswith("## "):
            lines.append(line if inside else "")
        elif title:
            lines.append("")
    return {title: "\n".join(lines) for title, lines in found.items() if any(lines)}


def run(title, **changes):
    source = sections()[title]
    for name, value in changes.items():
        source, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.M)
        assert count == 1
    namespace = {"__name__": "recipe"}
    exec(compile(source, str(PAGE), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("title", list(sections()))
def test_a_recipe_does_what_it_says(title):
    """Every block of the section, in order; its assertions are the test."""
    run(title)


@pytest.mark.slow
def test_the_common_urls_at_a_thousandth_of_the_size():
    """5 million lines in each file, 4.3 MB of memory."""
    result = run("The common URLs of two files larger than memory", SCALE="1_000")

    assert len(result["found"]) == 50_000


def test_the_page_has_the_three_recipes():
    assert len(sections()) == 3
