"""The guards' page in Chromium: for everybody, on any screen, by keyboard, with and without its script."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from bloomguard.metrics import series as figures
from bloomguard.models import GuardState, GuardTask

from ..shop.models import Article, Product
from .conftest import AXE

pytestmark = pytest.mark.django_db(transaction=True)

PATHS = [
    "",
    "?period=month&guard=article",
    "operate/?action=fence&guard=product",
    "operate/?action=rebuild&guard=order",
]


@pytest.fixture
def shop(build, monkeypatch):
    """One guard that is well, one that is fenced, one that a worker is at; figures as after an attack."""
    Product.objects.bulk_create(Product() for _ in range(920))
    Article.objects.bulk_create(Article(slug=f"article-{number}") for number in range(700))
    build("product")
    build("article")
    GuardState.objects.filter(name="article").update(status="fenced", reason="an add could not be proved")
    now = datetime.now(timezone.utc)
    GuardTask.objects.create(name="price", work="verify", status="running", done=40, total=100, seen_at=now)

    def read_series(guards, start, end, step):
        length = -(-int((end - start).total_seconds()) // step)
        blocked = [(number * 37 % 90) * (5 if 40 < number < 50 else 1) for number in range(length)]
        counts = {"blocked": blocked, "absent": blocked, "maybe": [300] * length}
        return {
            guard.name: figures.Series(guard.name, int(start.timestamp()), step, length, counts) for guard in guards
        }

    monkeypatch.setattr(figures, "read_series", read_series)


@pytest.mark.parametrize(
    ("path", "width", "scheme"),
    [
        *((path, 375, "light") for path in PATHS),
        *((path, 1280, "dark") for path in PATHS),
        ("", 375, "dark"),
        ("", 1280, "light"),
    ],
)
def test_everybody_can_use_it(visit, shop, path, width, scheme):
    """axe finds no violation, the browser under a strict policy none either, and nothing is wider than the screen."""
    page = visit(path, width, color_scheme=scheme)

    found = page.evaluate("script => { (0, eval)(script); return window.axe.run(); }", AXE.read_text())

    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert len(found["passes"]) > 15
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.said == []


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
    assert cells.count() == 8
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
    assert page.locator(".bg-names").inner_text() == "product"
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
    assert page.locator(".bg-passed svg").get_attribute("aria-label").startswith("Passed: 18,000 in all.")
    assert page.locator(".bg-passed rect").count() == 60
    assert page.locator(".bg-passed rect title").first.text_content().endswith(": 300")
    page.locator("summary").press("Enter")
    assert page.locator(".bg-figures tbody tr").count() == 60
    assert page.locator(".bg-figures tbody tr").first.inner_text().split("\t")[2] == "300"
