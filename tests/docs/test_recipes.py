"""The recipes beside other tools do what they say."""

from __future__ import annotations

import configparser
import logging
import logging.config
import re
import sys
from types import ModuleType

import pytest
from django.core.cache import cache
from django.db.models.signals import post_save
from django.http import Http404
from django.urls import include, path
from gazetteer.models import City

from bloomguard.guards import registry
from bloomguard.signals import request_blocked
from tests.docs.test_pages import blocks

PAGE = "recipes.md"


@pytest.fixture
def city(build, settings):
    """One city on the example project's own URLs, and its guard armed."""
    settings.ROOT_URLCONF = "config.urls"
    cache.clear()
    city = City.objects.create(pk=7, name="Ulm", slug="ulm", country="DE", latitude=0, longitude=0, population=1)
    build("city")
    yield city
    cache.clear()


@pytest.fixture
def recipe():
    """Runs the block that stands in this file; what it connects is disconnected."""
    signals = {signal: list(signal.receivers) for signal in (request_blocked, post_save)}
    made = []  # signals hold their receivers weakly

    def run(beginning, kind="python", **names):
        [block] = [block for block in blocks(PAGE, kind) if block.startswith(beginning)]
        module = ModuleType("recipe")
        made.append(module)
        vars(module).update(names)
        exec(block, vars(module))
        sys.modules["recipe"] = module
        return module

    yield run
    sys.modules.pop("recipe", None)
    for signal, receivers in signals.items():
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()


def test_a_client_that_asks_for_absent_ids_is_refused(city, recipe, client, settings):
    """Twenty a minute are answered; then every page is refused, to that client alone."""
    recipe("# gazetteer/limits.py")
    settings.MIDDLEWARE = ["recipe.refuse_scanners", *settings.MIDDLEWARE]
    settings.RATELIMIT_USE_CACHE = "default"

    assert [client.get("/cities/7/").status_code for _ in range(30)] == [200] * 30
    statuses = [client.get(f"/cities/{number}/").status_code for number in range(100, 130)]
    assert statuses == [404] * 21 + [429] * 9
    refused = client.get("/cities/7/")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert client.get("/cities/7/", REMOTE_ADDR="192.0.2.1").status_code == 200


def test_a_line_a_blocked_request_and_fail2ban_finds_the_client(city, recipe, client, tmp_path):
    """The log has the address and the guard, never the ID; fail2ban's pattern, without the date, takes the line."""
    recipe("# gazetteer/absent_log.py")
    settings_of_page = recipe("# config/settings.py")
    log = tmp_path / "absent-ids.log"
    settings_of_page.LOGGING["handlers"]["absent_ids"]["filename"] = str(log)
    logging.config.dictConfig(settings_of_page.LOGGING)
    try:
        for path_ in ("/cities/7/", "/cities/123456/", "/no/such/page/"):
            client.get(path_, REMOTE_ADDR="2001:db8::7")
    finally:
        for handler in logging.getLogger("absent_ids").handlers[:]:
            logging.getLogger("absent_ids").removeHandler(handler)
            handler.close()
        logging.getLogger("absent_ids").propagate = True

    [line] = log.read_text().splitlines()
    assert "123456" not in line
    filters, jail = (configparser.RawConfigParser() for _ in range(2))
    for parser, block in zip((filters, jail), blocks(PAGE, "ini"), strict=True):
        parser.read_string(block)
    pattern = filters["Definition"]["failregex"].replace("<HOST>", r"(?P<host>\S+)")
    dated = re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}(.*)", line)
    assert re.search(pattern, dated[1])["host"] == "2001:db8::7"
    assert jail["absent-ids"]["filter"] == "absent-ids"
    [shown] = re.findall(r'"filename": "(.*)"', "\n".join(blocks(PAGE, "python")))
    assert jail["absent-ids"]["logpath"] == shown


def test_a_404_page_keeps_its_own_header_for_a_cdn(city, recipe, client, settings):
    """Without one it gets ``no-store``."""
    assert client.get("/cities/8/").headers["Cache-Control"] == "no-store"
    module = recipe("# config/urls.py", urlpatterns=[path("", include("config.urls"))])
    module.handler404 = module.page_not_found
    settings.ROOT_URLCONF = "recipe"

    response = client.get("/cities/8/")

    assert (response.status_code, response.headers["Cache-Control"]) == (404, "max-age=5")


def test_null_entries_are_kept_only_while_the_guard_passes(city, recipe, clock, django_assert_num_queries):
    """Armed: no entry and no query. Not armed: one query, then the entry; a row that is saved is found at once."""
    [block] = [block for block in blocks(PAGE, "python") if "NO_CITY" in block]
    find = recipe(block, City=City).cached_city_or_404
    assert find(7) == city
    with django_assert_num_queries(0), pytest.raises(Http404):
        find(8)
    assert cache.get("city:8") is None

    registry["city"]._runtime.active_filter.table.fence("city", "for a test")
    clock.sleep(1.0)
    with pytest.raises(Http404):
        find(8)
    assert cache.get("city:8") == "no city"
    city.pk, city.slug = 8, "neu-ulm"
    city.save(force_insert=True)
    assert find(8) == city
