"""What a guard costs a request that exists, and saves of one that does not: ``make bench-requests``.

Through Django's real handlers and the middleware that ``startproject`` writes, on SQLite, PostgreSQL and MariaDB: a
process for each, whose site has that one database and no routers. A guard answers at the lookup (no route named), at
the route, and at the door. Handlers with and without bloomguard take turns in short batches; a comparison is a median
over the rounds. So do ``get()`` inside and outside of guarded lookups, by the CPU time that they take. Then over HTTP,
under gunicorn with two workers.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from .databases import VENDORS, servers
from .report import Report, Seconds, interleave, median, ratio

ROWS = 10_000
ROUNDS = {"default": 500, "postgresql": 300, "mariadb": 300}
BATCH = 5
FAST_BATCH = 100  # at the door, a request takes no longer than a look at the clock
GETS, GET_ROUNDS = 50, 400
SERVER_ROUNDS, SERVER_SECONDS = 5, 2.0
MODES = ("unguarded", "lookup", "route", "door")
#: The same view, at a path that no guard names, and at one that a guard names.
LOOKUP, ROUTE = "/rows%s/%%d/", "/products%s/%%d/"
GUARD = "bloomguard.middleware.BloomGuardMiddleware"
STARTPROJECT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
GUARDED = [*STARTPROJECT, GUARD]
#: What a request for an absent ID may take of an unguarded one, by where the guard answers.
TARGETS = {"lookup": 0.55, "route": 0.30, "@guarded": 0.30, "door": 0.01}
FLOOR = [STARTPROJECT[0], "bench.requests.not_found_at_once"]

Ask = Callable[[int], None]
AsyncAsk = Callable[[int], Awaitable[None]]


def not_found_at_once(get_response: Any) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that answers an empty 404 without looking: what Django itself needs for that, log included."""
    return lambda request: HttpResponse(status=404)


def set_up(folder: Path, database: dict[str, Any], **more: Any) -> None:
    """A site with one model, one guard, and nothing else that ``startproject`` does not write."""
    given: dict[str, Any] = {
        "SECRET_KEY": "for a benchmark",
        "BASE_DIR": folder,
        "ALLOWED_HOSTS": ["testserver"],
        "ROOT_URLCONF": "bench.requests_urls",
        "INSTALLED_APPS": [
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "bloomguard",
            "tests.shop",
        ],
        "MIDDLEWARE": STARTPROJECT,
        "TEMPLATES": [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        "DATABASES": {"default": database},
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "USE_TZ": True,
        "LOGGING_CONFIG": None,
    }
    settings.configure(**given | more)
    django.setup()
    # A 404 is logged to nowhere: neither is the cost of a terminal measured, nor that of formatting left out.
    handler = logging.FileHandler(os.devnull)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("django").addHandler(handler)


def fill() -> None:
    """Rows with odd IDs, so that an absent one has two neighbours, and the guard's filter."""
    from django.core.management import call_command

    from bloomguard.rebuild import Rebuild
    from tests.shop.guards import ProductGuard
    from tests.shop.models import Product

    call_command("migrate", verbosity=0, run_syncdb=True)
    Product.objects.bulk_create(Product(pk=2 * number + 1, name="a product") for number in range(ROWS))
    guards = [guard for guard in guards_of_the_shop() if isinstance(guard, ProductGuard)]
    Rebuild(guards[0]).run()


def guards_of_the_shop() -> Iterator[Any]:
    from bloomguard.guards import registry

    return iter(registry)


def handler(middleware: list[str]) -> Any:
    """Django's handler with these middlewares, as a server makes it."""
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import override_settings

    with override_settings(MIDDLEWARE=middleware):
        return WSGIHandler()


def requests(handle: Any, path: str, status: str) -> Ask:
    """``ask(pk)`` sends one request, as a WSGI server does, and reads the answer."""

    def start_response(got: str, headers: Any) -> None:
        assert got.startswith(status), got

    def ask(pk: int) -> None:
        response = handle(
            {
                "REQUEST_METHOD": "GET",
                "PATH_INFO": path % pk,
                "SCRIPT_NAME": "",
                "QUERY_STRING": "",
                "SERVER_NAME": "testserver",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "testserver",
                "HTTP_USER_AGENT": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                "HTTP_ACCEPT": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                "HTTP_ACCEPT_LANGUAGE": "en-US,en;q=0.5",
                "wsgi.input": io.BytesIO(),
                "wsgi.url_scheme": "http",
            },
            start_response,
        )
        for _ in response:
            pass
        if hasattr(response, "close"):
            response.close()

    return ask


def async_handler(middleware: list[str]) -> Any:
    """The same under ASGI."""
    from django.core.handlers.asgi import ASGIHandler
    from django.test import override_settings

    with override_settings(MIDDLEWARE=middleware):
        return ASGIHandler()


def async_requests(handle: Any, path: str, status: int) -> AsyncAsk:
    """``await ask(pk)`` sends one request, as an ASGI server does, and reads the answer."""
    headers = [
        (b"host", b"testserver"),
        (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
        (b"accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        (b"accept-language", b"en-US,en;q=0.5"),
    ]

    async def ask(pk: int) -> None:
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.sleep(60)  # nobody hangs up
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] == status, message

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path % pk,
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "server": ("testserver", 80),
        }
        await handle(scope, receive, send)

    return ask


def batch(ask: Ask, existing: bool, size: int = BATCH) -> Callable[[], None]:
    """``size`` requests, for other IDs each time."""
    numbers = count(1)  # 0 is a page of its own in the shop

    def run() -> None:
        for _ in range(size):
            ask(2 * (next(numbers) * 7919 % ROWS) + 1 if existing else 2 * next(numbers))

    return run


def async_batch(
    loop: asyncio.AbstractEventLoop, ask: AsyncAsk, existing: bool, size: int = BATCH
) -> Callable[[], None]:
    """The same on an event loop."""
    numbers = count(1)

    async def run() -> None:
        for _ in range(size):
            await ask(2 * (next(numbers) * 7919 % ROWS) + 1 if existing else 2 * next(numbers))

    return lambda: loop.run_until_complete(run())


def measure(rounds: int) -> Seconds:
    from bloomguard.wsgi import shield

    bare, guarded = handler(STARTPROJECT), handler(GUARDED)
    door = opened(shield, handler(GUARDED))
    lookup, route = LOOKUP % "", ROUTE % ""
    contestants = {
        "existing": batch(requests(bare, route, "200"), existing=True),
        "existing, the same again": batch(requests(handler(STARTPROJECT), route, "200"), existing=True),
        "existing, unnamed": batch(requests(bare, lookup, "200"), existing=True),
        "existing, lookup": batch(requests(guarded, lookup, "200"), existing=True),
        "existing, route": batch(requests(guarded, route, "200"), existing=True),
        "existing, door": batch(requests(door, route, "200"), existing=True),
        "absent": batch(requests(bare, route, "404"), existing=False),
        "absent, unnamed": batch(requests(bare, lookup, "404"), existing=False),
        "absent, lookup": batch(requests(guarded, lookup, "404"), existing=False),
        "absent, route": batch(requests(guarded, route, "404"), existing=False),
        "absent, @guarded": batch(requests(bare, "/decorated/%d/", "404"), existing=False),
        "absent, door": batch(requests(door, route, "404"), existing=False, size=FAST_BATCH),
        "absent, an empty 404 without looking": batch(requests(handler(FLOOR), route, "404"), existing=False),
    }
    return of_one(interleave(contestants, rounds=rounds), fast=("absent, door",))


def measure_async(rounds: int) -> Seconds:
    from bloomguard.asgi import shield

    loop = asyncio.new_event_loop()
    bare, guarded = async_handler(STARTPROJECT), async_handler(GUARDED)
    door = opened(shield, async_handler(GUARDED))
    lookup, route = LOOKUP % "-async", ROUTE % "-async"
    contestants = {
        "ASGI, existing": async_batch(loop, async_requests(bare, route, 200), existing=True),
        "ASGI, existing, the same again": async_batch(loop, async_requests(bare, route, 200), existing=True),
        "ASGI, existing, unnamed": async_batch(loop, async_requests(bare, lookup, 200), existing=True),
        "ASGI, existing, lookup": async_batch(loop, async_requests(guarded, lookup, 200), existing=True),
        "ASGI, existing, route": async_batch(loop, async_requests(guarded, route, 200), existing=True),
        "ASGI, existing, door": async_batch(loop, async_requests(door, route, 200), existing=True),
        "ASGI, absent": async_batch(loop, async_requests(bare, route, 404), existing=False),
        "ASGI, absent, unnamed": async_batch(loop, async_requests(bare, lookup, 404), existing=False),
        "ASGI, absent, lookup": async_batch(loop, async_requests(guarded, lookup, 404), existing=False),
        "ASGI, absent, route": async_batch(loop, async_requests(guarded, route, 404), existing=False),
        "ASGI, absent, door": async_batch(loop, async_requests(door, route, 404), existing=False, size=FAST_BATCH),
    }
    try:
        return of_one(interleave(contestants, rounds=rounds), fast=("ASGI, absent, door",))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def opened(shield: Any, application: Any) -> Any:
    """The application with :data:`GUARDED` behind its door; raises :class:`RuntimeError` if that stays shut."""
    from django.test import override_settings

    with override_settings(MIDDLEWARE=GUARDED):  # with which the handler was made: the door compares both
        door = shield(application)
    if door is application:
        raise RuntimeError("the door stays shut: nothing to measure")
    return door


def measure_gets(report: Report, name: str) -> None:
    """The CPU time that ``get()`` takes more where lookups are guarded."""
    from django.contrib.auth.models import Group

    from bloomguard.lookups import guarded_lookups
    from tests.shop.models import Product

    group = Group.objects.get_or_create(name="bench")[0].pk

    def gets(model: Any, pks: Iterator[int], guarded: bool) -> Callable[[], None]:
        def run() -> None:
            with guarded_lookups() if guarded else nullcontext():
                for _ in range(GETS):
                    model.objects.get(pk=next(pks))

        return run

    for what, model, pks, target in (
        ("an existing guarded row", Product, lambda: (2 * (number * 7919 % ROWS) + 1 for number in count(1)), 10),
        ("a row of another model", Group, lambda: repeat(group), 1),
    ):
        contestants = {"outside": gets(model, pks(), False), "inside": gets(model, pks(), True)}
        taken = interleave(contestants, rounds=GET_ROUNDS, clock=time.process_time)
        report.add(f"{name}: get() of {what}", median(taken, "outside") / GETS * 1e6, "us of CPU")
        more = statistics.median(ours - theirs for ours, theirs in zip(taken["inside"], taken["outside"]))
        report.add(
            f"{name}: get() of {what}, guarded lookups",
            more / GETS * 1e6,
            "us of CPU",
            against="more than outside",
            at_most=target,
        )


def of_one(taken: Seconds, fast: tuple[str, ...]) -> Seconds:
    """Seconds of one request each."""
    return {who: [each / (FAST_BATCH if who in fast else BATCH) for each in seconds] for who, seconds in taken.items()}


@contextmanager
def gunicorn(site: dict[str, Any]) -> Iterator[int]:
    """The port of gunicorn with two workers and this site."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    options = ["-w", "2", "-k", "gthread", "--threads", "4", "--keep-alive", "30", "-b", f"127.0.0.1:{port}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, "--log-level", "error", "bench.requests_site:application"],
        env=os.environ | {"BENCH_SITE": json.dumps(site)},
    )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()


def serve(folder: Path, database: dict[str, Any]) -> dict[str, list[float]]:
    """Requests a second of each mode in each round, for absent IDs."""
    from .load import requests_per_second

    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        ports = {}
        for mode in MODES:
            site = {"folder": str(folder), "database": database, "mode": mode}
            ports[mode] = stack.enter_context(gunicorn(site))
        for number in range(SERVER_ROUNDS + 1):
            for mode in MODES:
                path = (LOOKUP if mode == "lookup" else ROUTE) % ""
                rate = requests_per_second(ports[mode], path, SERVER_SECONDS, b"404")
                if number:
                    rates[mode].append(rate)
    return rates


def measure_all(report: Report, alias: str, folder: Path, database: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of ``report`` and, measured in this process, those of the site on ``database``."""
    name, rounds = VENDORS[alias], ROUNDS[alias]
    set_up(folder, database)
    fill()
    taken = measure(rounds) | measure_async(rounds)
    for who in taken:
        report.add(f"{name}: {who}", median(taken, who) * 1e6, "us/request")
    for protocol in ("", "ASGI, "):
        report.add(
            f"{name}: {protocol}existing IDs, the same handler twice",
            ratio(taken, f"{protocol}existing, the same again", f"{protocol}existing"),
            against="itself: the noise",
        )
        for where, target in TARGETS.items():
            # Under ASGI, Django takes most of its time to go from thread to thread, with a query or without.
            due = None if protocol and where != "door" else target
            for who, at_most in (("existing", 1.03), ("absent", due)):
                if f"{protocol}{who}, {where}" in taken:
                    # The same path without a guard: Django tries one pattern after the other.
                    unguarded = f"{protocol}{who}, unnamed" if where == "lookup" else f"{protocol}{who}"
                    report.add(
                        f"{name}: {protocol}{who} IDs, {where}",
                        ratio(taken, f"{protocol}{who}, {where}", unguarded),
                        against="unguarded",
                        at_most=at_most,
                    )
    measure_gets(report, name)
    rates = serve(folder, database)
    for mode in MODES:
        report.add(f"{name}, gunicorn: absent IDs, {mode}", statistics.median(rates[mode]), "requests/s")
    for mode in MODES[1:]:
        report.add(
            f"{name}, gunicorn: absent IDs, {mode}",
            statistics.median(ours / theirs for ours, theirs in zip(rates[mode], rates["unguarded"])),
            against="unguarded requests/s",
            at_least=6.0 if mode == "door" else None,
            reason="what is left is gunicorn's own work for a request, and the client on the same two cores",
        )
    return report.rows


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="bloomguard-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    report = Report("requests", "Requests through Django's handlers, with and without bloomguard")
    report.start()
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}
    for alias, database in {"default": sqlite, **servers(report)}.items():
        (folder / alias).mkdir()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            report.rows = process.submit(measure_all, report, alias, folder / alias, database).result()
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
