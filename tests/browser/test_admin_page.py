"""The guards' page in Chromium: for everybody, on any screen, by keyboard, with and without its script."""

from __future__ import annotations

import io
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import django
import pytest
from PIL import Image

from bloomguard import metrics as figures
from bloomguard.models import GuardState, GuardTask
from bloomguard.state import table as state

from ..shop.models import Article, Order, Place, Price, Product
from . import pictures
from .conftest import AXE

pytestmark = pytest.mark.django_db(transaction=True)

VERSION = ".".join(map(str, django.VERSION[:2]))
#: The page of one guard, and confirmations, by the names of their pictures.
PATHS = {
    "guards": "",
    "guard": "?period=month&guard=article",
    "fence": "operate/?action=fence&guard=product&guard=article",
    "command": "operate/?action=rebuild&guard=order",
}
#: The versions that `make test-browser` runs; the admin of 6.0 looks as that of 5.2.
PICTURED = ("5.2", "6.1")
DOCS = Path(__file__).parents[2] / "docs" / "images"
#: Set to store what the pages look like now.
RENEW = bool(os.environ.get("BLOOMGUARD_RENEW_PICTURES"))
SCREENS = [(width, scheme) for width in (1280, 768, 375) for scheme in ("light", "dark")]


@pytest.fixture
def shop(build, monkeypatch):
    """A guard in each state that needs no broken server, one that a worker is at; figures as after an attack."""
    Product.objects.bulk_create(Product() for _ in range(920))
    Article.objects.bulk_create(Article(slug=f"article-{number}") for number in range(700))
    Order.objects.bulk_create(Order() for _ in range(410))
    Price.objects.bulk_create(Price(amount=number) for number in range(260))
    Place.objects.bulk_create(Place(country="nz", slug=f"place-{number}") for number in range(930))
    now = datetime.now(timezone.utc)
    for name in ("product", "article", "city", "listing", "place", "order", "price"):
        build(name)
        GuardState.objects.filter(name=name).update(published_at=now - timedelta(hours=7, minutes=30))
    GuardState.objects.filter(name="product").update(former_published_at=now - timedelta(days=30), former_rows=620)
    GuardState.objects.filter(name="article").update(status="fenced", reason="an add could not be confirmed")
    GuardState.objects.filter(name="place").update(mode="shadow")
    GuardTask.objects.create(name="price", work="verify", status="running", done=40, total=100, seen_at=now)
    state.table.forget()

    def read_series(guards, start, end, step):
        length, begun = -(-int((end - start).total_seconds()) // step), datetime(2026, 3, 1, 19, tzinfo=timezone.utc)
        blocked = [(number * 37 % 90) * (5 if 40 < number < 50 else 1) for number in range(length)]
        passed = [205 + number * 7 % 20 * 10 for number in range(length)]
        counts = {"blocked": blocked, "absent": blocked, "maybe": passed, "would-be 404": blocked}
        return {
            guard.name: figures.Series(guard.name, int(begun.timestamp()), step, length, counts) for guard in guards
        }

    monkeypatch.setattr(figures, "read_series", read_series)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_everybody_can_use_it(visit, shop, width, scheme, monkeypatch):
    """axe finds no violation, the browser under a strict policy none either, and nothing is wider than its place."""
    for name, path in PATHS.items():
        check(visit(path, width, color_scheme=scheme), f"{name}-{width}-{scheme}")
    monkeypatch.setattr("bloomguard.admin.registry", [])
    check(visit("", width, color_scheme=scheme), f"no-guards-{width}-{scheme}")


def check(page, name):
    """Whether a page can be used by everybody, and looks as it did."""
    found = page.evaluate("script => { (0, eval)(script); return window.axe.run(); }", AXE.read_text())

    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found["violations"]] == [], name
    assert len(found["passes"]) > 15
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") == 0, name
    assert page.evaluate(TOO_WIDE) == [], name
    assert page.said == []
    if VERSION not in PICTURED:
        return
    picture, file = pictures.picture(page), pictures.STORED / VERSION / f"{name}.png"
    if RENEW:
        pictures.store(picture, file)
    assert pictures.differences(picture, file) <= pictures.TOLERATED, name


#: What reaches out of the card, the table or the page that it is in. A long command may be scrolled.
TOO_WIDE = """[
    ...document.querySelectorAll("#content, .bg-chart, .bg-actions, .bg-wide, .bg-table tr, .bg-table td, .bg-empty")
]
    .filter(box => box.scrollWidth > box.clientWidth + 1 && box.offsetWidth)
    .map(box => [box.className, box.clientWidth, box.scrollWidth])"""


@pytest.mark.skipif(VERSION not in PICTURED, reason=f"no pictures are stored for Django {VERSION}")
@pytest.mark.parametrize("width", [1280, 375])
def test_a_picture_tells_a_layout_from_a_font(visit, shop, width):
    """Another font of the machine changes nothing; each way in which the page was broken once is seen."""
    page = visit("", width)
    file = pictures.STORED / VERSION / f"guards-{width}-light.png"
    style(page, "body, button, code { font-family: serif; letter-spacing: normal; }")

    font = pictures.differences(pictures.picture(page), file)
    broken = {}
    for name, css in BROKEN.items():
        style(page, css)
        broken[name] = pictures.differences(pictures.picture(page), file)

    assert font <= pictures.TOLERATED
    assert {name for name, different in broken.items() if different <= pictures.TOLERATED} == set()


@pytest.mark.skipif(not RENEW, reason="makes the pictures of docs/admin.md")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pictures_of_the_docs(visit, shop, scheme):
    """As the page looks in the newest Django, small in bytes."""
    page = visit("", color_scheme=scheme)

    shown = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    pictures.store(shown.convert("RGB"), DOCS / f"admin-{scheme}.png", colours=128)

    assert (DOCS / f"admin-{scheme}.png").stat().st_size < 100_000


def style(page, css):
    """Add these rules alone."""
    page.evaluate(
        "css => { const s = new CSSStyleSheet(); s.replaceSync(css); document.adoptedStyleSheets = [s]; }", css
    )


BROKEN = {
    "breadcrumbs without their style": ".breadcrumbs { all: unset !important; }",
    "figures in five lines": "td.bg-number { white-space: normal !important; width: 20px; display: block !important; }",
    "operations that look alike": ".bg-actions .bg-action { all: revert !important; }",
    "charts below each other": ".bg-charts { display: block !important; }",
    "no charts": ".bg-plot { display: none !important; }",
    "a table in the cards' place, or cards in its": ".bg-table tr { display: block !important; }",
}


@pytest.mark.parametrize("language", ["en-us", "ru", "zh-hans"])
@pytest.mark.parametrize("width", [1280, 375])
def test_figures_fit_in_two_lines(visit, shop, settings, width, language):
    """In every language nothing is wider than its place, and a figure with its note takes two lines at most."""
    settings.LANGUAGE_CODE = language

    page = visit("", width)

    assert page.evaluate("document.documentElement.lang") == language
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") == 0
    assert page.evaluate(TOO_WIDE) == []
    lines = page.evaluate(LINES)
    assert len(lines) > 50
    assert [figure for figure in lines if figure[1] > 2] == []


#: Each figure's text and number of lines: tops of its letters that are apart.
LINES = """[...document.querySelectorAll(".bg-table td[data-label]:not(.bg-state)")].map(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const tops = [...range.getClientRects()].filter(box => box.width > 1).map(box => box.top).sort((a, b) => a - b);
    const text = cell.textContent.trim();
    const svg = cell.querySelector(".bg-percent, svg") && cell.classList.contains("bg-spark") ? 1 : 0;
    return [text, tops.filter((top, number) => !number || top - tops[number - 1] > 8).length - svg];
})"""


def test_dark_is_dark(visit, shop):
    """The page follows the system, and the admin's own switch before it."""
    page = visit("", color_scheme="dark")
    charts = "getComputedStyle(document.querySelector('.bg-chart')).backgroundColor.match(/\\d+/g).map(Number)"
    badge = "getComputedStyle(document.querySelector('.bg-is-armed')).backgroundColor"

    dark, dark_badge = page.evaluate(charts), page.evaluate(badge)
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    light, light_badge = page.evaluate(charts), page.evaluate(badge)

    assert max(dark) < 80
    assert min(light) > 230
    assert dark_badge != light_badge


def test_a_phone_shows_every_figure(visit, shop):
    """At 375 px each guard is a card: all of its cells can be seen, with their names, and none is cut off."""
    page = visit("", 375)

    cells = page.locator('tr[data-guard="product"] td[data-label]')
    assert cells.count() == 7
    for number in range(cells.count()):
        box = cells.nth(number).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375
        assert box["height"] > 10
    name = "getComputedStyle(document.querySelector('td[data-label=\"Rows\"]'), '::before').content"
    assert page.evaluate(name) == '"Rows"'


@pytest.mark.parametrize("script", [True, False], ids=["with the script", "without a script"])
def test_a_keyboard_is_enough(visit, shop, script):
    """Tick a guard, choose what to do, confirm: with Tab, Space and Enter alone."""
    page = visit("?guard=product", java_script_enabled=script)

    press_until(page, "button", "Fence…")
    page.keyboard.press("Enter")
    page.wait_for_url("**/operate/**")
    assert page.locator(".bg-names").inner_text().strip() == "product"
    press_until(page, "input", "Yes, I’m sure")
    page.keyboard.press("Enter")
    page.wait_for_url("**/guardstate/")

    assert "Guard product: Fenced" in page.locator(".messagelist").inner_text()
    assert GuardState.objects.get(name="product").status == "fenced"


def press_until(page, tag, words):
    """Press Tab until what has the focus, which can be seen, says ``words``."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if focused.evaluate("e => e.tagName.toLowerCase()") == tag:
            said = focused.evaluate("e => e.value && e.tagName === 'INPUT' ? e.value : e.textContent")
            if said == words:
                assert focused.evaluate("e => e.matches(':focus-visible')")
                return
    raise AssertionError(f"no way to {words} by keyboard")


def test_one_tick_for_all(visit, shop):
    """It ticks and clears every guard, and shows where only some are ticked."""
    page = visit("")
    every, boxes = page.locator("#bg-all"), page.locator('.bg-table input[name="guard"]')

    every.check()
    ticked = [boxes.nth(number).is_checked() for number in range(boxes.count())]
    boxes.first.uncheck()

    assert len(ticked) > 5
    assert all(ticked)
    assert every.evaluate("e => e.indeterminate")


def test_progress_moves_and_ends(visit, shop):
    """The bar follows the worker without a new page; when it is done, the page shows what came of it."""
    page = visit("")
    bar = page.locator('tr[data-guard="price"] progress')
    before = bar.evaluate("e => e.value")

    GuardTask.objects.update(done=80)
    page.wait_for_selector('tr[data-guard="price"] progress[value="80"]')
    GuardTask.objects.update(status="done", outcome="Verified: all 100 rows are in its filter.")
    page.wait_for_selector("text=Verified: all 100 rows are in its filter.")

    assert before == 40
    assert page.locator("progress").count() == 0


def test_the_charts_say_what_they_draw(visit, shop):
    """Each has its sum in words, a bar for each step with its number, and a table that a screen reader can read."""
    page = visit("?guard=product&period=hour")

    assert page.locator(".bg-chart").count() == 3
    assert page.locator(".bg-passed svg").get_attribute("aria-label").startswith("Passed: 18,000 in total.")
    assert page.locator(".bg-passed rect").count() == 60
    assert page.locator(".bg-passed rect title").first.text_content().endswith(": 205")
    page.locator("summary").press("Enter")
    assert page.locator(".bg-figures tbody tr").count() == 60
    assert page.locator(".bg-figures tbody tr").first.inner_text().split("\t")[2] == "205"
