"""What the pages on running a site show can be typed in, and says what the code says."""

from __future__ import annotations

import ast
import http.client
import io
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.cache import cache
from django.core.management import BaseCommand, CommandError, call_command, load_command_class
from django.db import models
from django.db.models import Q
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.test import RequestFactory
from gazetteer.models import City, Listing

import bloomguard
from bloomguard.guards import Guard, register, registry
from bloomguard.lookups import guarded_lookups
from bloomguard.models import GuardState
from bloomguard.rebuild import rebuild
from bloomguard.rebuild.source import Source
from bloomguard.state import verdicts
from bloomguard.state.connection import StateConnection
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support.servers import free_port, wait_for

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = Path(bloomguard.__file__).parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = (
    *("rebuild_filter", "verify_filter", "filter_stats", "switch_guards", "explain_guard", "guard_routes"),
    *("suggest_guards", "remove_guard"),
)
SERVERS = ("gunicorn", "uvicorn", "granian")


def blocks(page, kind):
    return [text for language, text in BLOCK.findall((DOCS / page).read_text()) if language == kind]


def commands(page):
    """The lines of the page that somebody types."""
    return re.findall(r"^\$ (.*)$", "\n".join(blocks(page, "console")), re.MULTILINE)


@pytest.fixture
def gazetteer(build, settings, monkeypatch):
    """The example project, with one city and its listing, guarded."""
    monkeypatch.setattr(rebuild, "EXPIRY_SECONDS", 0.0)
    settings.ROOT_URLCONF = "config.urls"
    city = City.objects.create(
        pk=7, name="Ulm", slug="ulm", country="DE", timezone="Europe/Berlin", population=1, latitude=0, longitude=0
    )
    Listing.objects.create(city=city, title="A room", slug="room")
    for name in ("city", "listing"):
        build(name)
    return city


@pytest.fixture
def fresh_registry():
    """What a page registers is gone afterwards."""
    before = set(registry)
    yield
    for guard in set(registry) - before:
        registry.remove(guard)
    registry.clashes.clear()


@pytest.fixture
def alone(gazetteer, monkeypatch):
    """No other guards than the example project's, as on a site of its own."""
    own = {guard.name: guard for guard in registry if guard.model._meta.app_label == "gazetteer"}
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_guards", own)
        registry.changed()
        yield
    registry.changed()


PAGES_OF_COMMANDS = [
    *("commands", "deploying", "from-null-caching", "limits", "raw-sql", "rebuilds", "releases", "routes"),
    *("troubleshooting", "verify"),
]


@pytest.mark.parametrize("page", PAGES_OF_COMMANDS)
def test_every_command_of_the_page_runs(page, alone):
    """Each ends well on the example project."""
    typed = [line for line in commands(f"{page}.md") if not line.startswith((*SERVERS, "curl"))]
    assert typed
    for line in typed:
        words = shlex.split(line.partition(" || ")[0])
        assert words[:2] == ["python", "manage.py"], line
        if words[2] == "remove_guard":
            GuardState.objects.create(name=words[3])
        if words[2] == "shell":
            exec(words[4], {})
        else:
            call_command(*words[2:])


@pytest.mark.django_db
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_stands_on_the_page(name):
    """With its argument, and no option that there is not."""
    page = (DOCS / "commands.md").read_text()
    section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    shown = set(re.findall(r"^\| `(-*[\w-]+)", section, re.MULTILINE)) - {"option"}
    usual = {action.dest for action in BaseCommand().create_parser("manage.py", "none")._actions}

    parser = load_command_class("bloomguard", name).create_parser("manage.py", name)
    actions = [action for action in parser._actions if action.dest not in usual]
    there = {action.option_strings[0] if action.option_strings else action.metavar or action.dest for action in actions}
    assert shown == there


def test_every_command_stands_on_the_page():
    """All that the package brings."""
    there = {file.stem for file in (PACKAGE / "management" / "commands").glob("[a-z]*.py")}

    assert there == set(COMMANDS) == set(re.findall(r"^## `(\w+)`", (DOCS / "commands.md").read_text(), re.MULTILINE))


def test_every_reason_has_a_cure():
    """Whatever ``explain_guard`` or ``filter_stats`` gives as a reason can be looked up."""
    page = (DOCS / "troubleshooting.md").read_text()
    shown = re.findall(r"^\| `([^`]+)`", page.partition("## By reason")[2].partition("\n## ")[0], re.MULTILINE)
    reasons = {each.reason for each in vars(verdicts).values() if isinstance(each, verdicts.Decision)}

    assert set(shown) == reasons
    assert len(shown) == len(set(shown))


def written(node):
    """The text of a literal in the source; dots for what differs."""
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) or "..." for part in node.values)
    return re.sub("%[srd]", "...", node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def said(*functions):
    """Each first text that the package passes to one of the functions, such as a method of its loggers."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in functions:
                yield from list(filter(None, map(written, node.args)))[:1]


def explained(page):
    """The messages in a page's tables, each as a pattern: dots stand for anything, and its end may be left out."""
    for row in re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", row):
            yield text, ".{1,80}?".join(map(re.escape, text.split("...")))


def test_the_messages_that_are_explained_are_given():
    """Each is a text of the package."""
    source = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    page = (DOCS / "troubleshooting.md").read_text()
    lines, failures = page.partition("## By log line")[2], page.partition("## `rebuild_filter` fails")[2]
    shown = [*explained(lines.partition("\n## Nothing")[0]), *explained(failures)]

    assert len(shown) > 60
    assert [text for text, pattern in shown if not re.search(pattern.removeprefix(".{1,80}?"), source)] == []


def test_every_line_of_the_log_is_explained():
    """Whoever searches the page for a line that bloomguard has logged finds what to do."""
    page = (DOCS / "troubleshooting.md").read_text().partition("## By log line")[2].partition("\n## ")[0]
    patterns = [pattern for _, pattern in explained(page)]
    said_by = said("info", "warning", "error", "exception")
    lines = {text for text in said_by if text.startswith(("bloomguard", "a connection"))}

    assert len(lines) > 30
    assert [text for text in sorted(lines) if not any(re.search(pattern, text) for pattern in patterns)] == []


def test_every_failure_of_a_rebuild_is_explained():
    """But for those that are made of a reason; what it refuses stands on a page of its own."""
    page = (DOCS / "troubleshooting.md").read_text().partition("## `rebuild_filter` fails")[2]
    patterns = [pattern.removeprefix(".{1,80}?") for _, pattern in explained(page)]
    texts = {text for text in said("RebuildError") if re.search("[a-z]{3}", text)}

    assert len(texts) > 20
    assert [text for text in sorted(texts) if not any(re.search(pattern, text) for pattern in patterns)] == []


def test_the_periodic_task_builds_what_needs_it(gazetteer, monkeypatch):
    """For a scheduler; a build by another process is no error."""
    monkeypatch.setitem(sys.modules, "celery", SimpleNamespace(shared_task=lambda function: function))
    namespace = {}
    [block] = blocks("rebuilds.md", "python")
    exec(block, namespace)
    GuardState.objects.filter(name="city").update(status="fenced")
    namespace["rebuild_filters"]()
    assert GuardState.objects.get(name="city").status == "armed"

    def call_command(*args):
        raise CommandError("busy", returncode=75)

    namespace["call_command"] = call_command
    namespace["rebuild_filters"]()


def test_filters_that_are_fenced_answer_nothing_until_they_are_built(gazetteer, build, clock):
    """The way back to a version without bloomguard: what it writes is not answered 404 when the newer one returns."""
    section = (DOCS / "releases.md").read_text().partition("## Roll back")[2].partition("\n## ")[0]
    call_command(*re.findall(r"\$ python manage.py (switch_guards .*)", section)[0].split())
    clock.sleep(1.0)

    assert registry["city"].verdict(8) is Verdict.UNKNOWN
    build("city")
    assert registry["city"].verdict(8) is Verdict.ABSENT


def test_an_unknown_secret_or_definition_passes_and_its_write_fences(gazetteer, settings, build, clock, monkeypatch):
    """Two versions side by side: the one that cannot read the filter passes, and no row of its own is ever denied."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a new one", ["for tests alone"]
    assert registry["city"].verdict(8) is Verdict.ABSENT
    settings.SECRET_KEY_FALLBACKS = []
    registry["city"]._runtime.active_filter.forget()
    assert registry["city"].verdict(8) is Verdict.UNKNOWN
    monkeypatch.setattr(registry["city"]._runtime.active_filter.table, "sleep", clock.sleep)
    gazetteer.pk = 9
    gazetteer.slug = "nine"
    gazetteer.save(force_insert=True)

    assert GuardState.objects.get(name="city").status == "fenced"


def test_another_normalize_counts_as_another_definition_under_another_class():
    """Or if it shows in one of the samples. What else a function does cannot be told from outside."""

    def guard(class_name, normalize):
        normalize.__qualname__ = f"{class_name}.normalize"
        return type(class_name, (Guard,), {"name": "city", "lookup": "slug", "normalize": normalize})(City)

    before, changed, renamed = (
        guard("CityGuard", lambda self, value: value),
        guard("CityGuard", lambda self, value: "munich" if value == "muenchen" else value),
        guard("LowerCityGuard", lambda self, value: value),
    )
    assert before._meta.definition == changed._meta.definition != renamed._meta.definition

    lower = guard("CityGuard", lambda self, value: value.lower())
    assert lower._meta.definition != before._meta.definition


def test_the_example_of_null_caching_moves_as_the_page_says(gazetteer, fresh_registry, django_assert_num_queries):
    """Its functions, before and after, answer the same."""
    namespace = {"City": City}
    cache.clear()
    for block in blocks("from-null-caching.md", "python"):
        exec(block, namespace)

    assert [guard.mode for guard in registry.clashes] == ["shadow"]  # the example project has one of this name
    assert [namespace[name](7).name for name in ("cached_city_or_404", "city_or_404", "city_from_cache_or_none")] == [
        "Ulm"
    ] * 3
    for name in ("cached_city_or_404", "city_or_404"):
        with pytest.raises(Http404):
            namespace[name](8)
    with django_assert_num_queries(0):
        assert namespace["city_from_cache_or_none"](8) is None
    cache.clear()


def test_the_router_and_the_tenants_of_the_page(gazetteer, fresh_registry, settings, build, django_assert_num_queries):
    """State rows and scans are on the primary; a slug counts for its tenant alone."""
    from django.http import HttpResponse

    router, _ = blocks("databases.md", "python")
    _, tenants, view = blocks("tenants.md", "python")
    namespace = {"Listing": Listing, "HttpResponse": HttpResponse, "get_object_or_404": get_object_or_404}
    for block in (router, tenants, view):
        exec(block, namespace)
    build("listing-of-city")
    request = RequestFactory().get("/")
    request.tenant = gazetteer
    with guarded_lookups():
        assert namespace["listing"](request, "room").content == b"A room"
        request.tenant = City(pk=8)
        with django_assert_num_queries(0), pytest.raises(Http404):
            namespace["listing"](request, "room")
    assert registry["listing-of-city"].verdict((8, "room")) is Verdict.ABSENT

    settings.DATABASE_ROUTERS = [namespace["Router"]()]
    assert (StateConnection().alias, Source(registry["city"]).using) == ("default", "default")


def test_the_column_of_the_page_compares_bytes():
    """Its collation is one that a guard may look up by on MariaDB."""
    from bloomguard.rebuild.refusals import EXACT_COLLATIONS

    namespace = {"models": models}
    exec(blocks("databases.md", "python")[-1], namespace)

    assert namespace["slug"].db_collation in EXACT_COLLATIONS


def test_the_guards_with_a_scope_can_be_declared(fresh_registry):
    """Of tenants, and of the databases that they name."""
    page = (DOCS / "tenants.md").read_text()
    declared = [textwrap.dedent(text) for text in re.findall(r"^ *```python\n(.*?)^ *```", page, re.M | re.S)]
    namespace = {"Listing": Listing}
    scoped = [block for block in declared if "scope" in block]
    for number, block in enumerate(scoped):
        exec(block.replace("ListingGuard", f"Listing{number}Guard"), namespace)

    assert [registry[f"listing{number}"].scope for number in range(2)] == ["schema", "database"]
    assert list(registry["listing1"].scopes()) == ["default", "berlin", "paris"]


def test_the_stores_of_the_page_can_be_made(settings, tmp_path):
    """Settings as they stand there, in another folder."""
    from bloomguard.stores import stores

    [block] = blocks("deploying.md", "python")
    namespace = {}
    exec(block.replace("/var/lib/mysite", str(tmp_path)), namespace)
    settings.BLOOMGUARD = namespace["BLOOMGUARD"]

    stores["default"].prepare("city")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "filters", tmp_path / "filters" / "city")} == {0o700}


def test_the_other_settings_and_guards_of_the_pages_are_right(gazetteer, fresh_registry, settings, tmp_path):
    """Stores can be made, and guards have nothing that a check finds."""
    from django.core import checks

    from bloomguard.stores import stores

    namespace = {"Guard": Guard, "Q": Q, "register": register}
    [alive], [shadow] = blocks("soft-delete.md", "python"), blocks("verify.md", "python")
    for block in (
        alive.replace("City", "Room"),
        shadow.replace("City", "Bed"),
    ):
        exec(block, namespace | {"Room": Listing, "Bed": Listing})
    assert registry["room"].alive == Q(deleted_at=None)
    assert registry["bed"]._runtime.is_shadow
    for page, kind in (("settings.md", "FileStore"), ("redis.md", "RedisStore")):
        [block] = blocks(page, "python")
        exec(block.replace("/var/lib/mysite", str(tmp_path)), namespace)
        settings.BLOOMGUARD, settings.CACHES = namespace["BLOOMGUARD"], namespace.get("CACHES", settings.CACHES)
        stores.reset()
        assert type(stores["default"]).__name__ == kind
        assert [found.id for found in checks.run_checks(tags=["bloomguard"]) if "store" in found.msg] == []


def test_the_routes_of_the_page_are_of_the_shapes_that_a_guard_takes():
    """Names, kwargs of names, kwargs of fields, or all that can be found."""
    [block] = blocks("routes.md", "python")
    shapes = []
    for line in block.splitlines():
        namespace = {}
        exec(line, namespace)
        shapes.append(namespace["routes"])

    assert shapes == [
        ["city-detail", "places:city"],
        {"city-detail": "number"},
        {"place": {"country": "code", "slug": "slug"}},
        "auto",
    ]


def test_the_list_of_routes_is_as_the_page_shows_it(alone, monkeypatch):
    """Each line for the example project stands there, but for the space between its columns."""
    monkeypatch.setattr(registry["city"], "routes", ["city-detail"])
    registry.changed()
    [shown] = [block for block in blocks("routes.md", "console") if "guard_routes" in block]
    out = io.StringIO()
    call_command("guard_routes", stdout=out)

    printed = {" ".join(line.split()) for line in out.getvalue().splitlines()}
    assert {" ".join(line.split()) for line in shown.splitlines()[1:]} <= printed


@pytest.mark.parametrize("module", ["tests.simulation", "tests.fuzz"])
def test_the_proofs_of_the_protocol_run(module):
    """They take the options that their page shows."""
    begin = f"python -m {module} "
    typed = [line for line in commands("protocol.md") if line.startswith(begin)]
    helped = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert typed
    assert all(option in helped.stdout for line in typed for option in line.split() if option.startswith("--"))


def test_the_example_of_the_options_is_a_guard(fresh_registry):
    """It can be registered; and the page names each option and each method that can be overridden."""
    page = (DOCS / "guard.md").read_text()
    options = [name for name in Guard.__annotations__ if name != "model"]

    assert [name for name in (*options, "applies", "normalize") if f"`{name}" not in page] == []
    first, second = blocks("guard.md", "python")
    namespace = {"City": City}
    exec(first, namespace)
    exec(second, namespace)
    assert namespace["PlaceGuard"](City).normalize("ULM") == "ulm"
    assert "city-by-slug" in {guard.name for guard in registry.clashes}  # the example project has one of this name


def test_the_filter_of_the_page_works():
    """It needs neither Django nor a server."""
    [block] = blocks("filters.md", "python")
    namespace = {}
    exec(block, namespace)

    assert b"https://example.com/" not in namespace["seen"]


#: Pages with code, and where it runs if not here.
ELSEWHERE = {
    "api": "docs/test_api.py",
    "door": "door/test_servers.py",
    "lookups": "docs/test_lookups.py",
    "monitoring": "docs/test_monitoring.py",
    "filter-recipes": "filters/test_recipes.py",
    "recipes": "docs/test_recipes.py",
    "testing": "test_testing.py",
    "tutorial": "newcomer/test_first_steps.py",
    "views": "docs/test_lookups.py",
}


def test_every_page_with_code_is_run():
    """A new page, or the first block of one, needs a test."""
    here = Path(__file__).read_text()
    for page in DOCS.glob("*.md"):
        if any(kind in ("python", "console") for kind, _ in BLOCK.findall(page.read_text())):
            runs = ROOT / "tests" / ELSEWHERE.get(page.stem, "docs/test_pages.py")
            assert runs.exists()
            assert page.stem in ELSEWHERE or f'"{page.name}"' in here or page.stem in PAGES_OF_COMMANDS, page.name


def answered(port, child):
    """The status of a page that there is, and of one that there is not and no cache may keep."""
    wait_for(port, child)
    told = []
    for path in ("/products/7/", "/products/8/"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        told.append((response.status, response.headers["Cache-Control"]))
        connection.close()
    return told


def test_the_servers_of_the_page_start(build, start):
    """Each line, with another site and port, blocks what does not exist and shows what does."""
    Product.objects.create(pk=7)
    build("product")
    lines = [line for line in commands("deploying.md") if line.startswith(SERVERS)]
    assert len(lines) == 4
    running = []
    for line in lines:
        port = free_port()
        module, *words = shlex.split(line.replace("mysite", "config").replace("--workers 4", "--workers 1"))
        words += ["--bind", f"127.0.0.1:{port}"] if module == "gunicorn" else ["--port", str(port)]
        code = f"import os, sys; os.execv(sys.executable, [sys.executable, '-m', {module!r}, *{words!r}])"
        running.append((line, port, start(code=code)))
    for line, port, child in running:
        assert answered(port, child) == [(200, None), (404, "no-store")], line
