"""What a guard costs a request that exists, and saves of one that does not: ``make bench-requests``.

In one process, through Django's real ``WSGIHandler`` and the middleware that ``startproject`` writes, on SQLite and
PostgreSQL. Handlers with and without bloomguard take turns in short batches; a comparison is a median over the rounds.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from .report import Report, Seconds, interleave, median, ratio

ROWS = 10_000
ROUNDS = {"default": 1_000, "postgresql": 300}
BATCH = 5
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
GUARDED = [STARTPROJECT[0], GUARD, *STARTPROJECT[1:]]
FLOOR = [STARTPROJECT[0], "bench.requests.not_found_at_once"]

Ask = Callable[[int], None]


def not_found_at_once(get_response: Any) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that answers an empty 404 without looking: what Django itself needs for that, log included."""
    return lambda request: HttpResponse(status=404)


def set_up(folder: Path) -> None:
    """A site with one model, one guard, and nothing else that ``startproject`` does not write."""
    from tests.servers import postgresql  # a real one, of our own

    settings.configure(
        SECRET_KEY="for a benchmark",
        BASE_DIR=folder,
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF="tests.shop.urls",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "bloomguard",
            "tests.shop",
        ],
        MIDDLEWARE=STARTPROJECT,
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"},
            "postgresql": postgresql(),
        },
        DATABASE_ROUTERS=["tests.database.Router"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    # A 404 is logged to nowhere: neither is the cost of a terminal measured, nor that of formatting left out.
    handler = logging.FileHandler(os.devnull)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("django").addHandler(handler)


def fill(alias: str) -> None:
    """Rows with odd IDs, so that an absent one has two neighbours, and the guard's filter."""
    from django.core.management import call_command

    from bloomguard.rebuild import Rebuild
    from tests import database
    from tests.shop.guards import ProductGuard
    from tests.shop.models import Product

    database.current = alias
    call_command("migrate", database=alias, verbosity=0, run_syncdb=True)
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
        response.close()

    return ask


def batch(ask: Ask, existing: bool) -> Callable[[], None]:
    """``BATCH`` requests, for other IDs each time."""
    numbers = count(1)  # 0 is a page of its own in the shop

    def run() -> None:
        for _ in range(BATCH):
            ask(2 * (next(numbers) * 7919 % ROWS) + 1 if existing else 2 * next(numbers))

    return run


def measure(rounds: int) -> Seconds:
    bare, guarded = handler(STARTPROJECT), handler(GUARDED)
    return interleave(
        {
            "existing": batch(requests(bare, "/products/%d/", "200"), existing=True),
            "existing, middleware": batch(requests(guarded, "/products/%d/", "200"), existing=True),
            "existing, the same again": batch(requests(handler(STARTPROJECT), "/products/%d/", "200"), existing=True),
            "absent": batch(requests(bare, "/products/%d/", "404"), existing=False),
            "absent, middleware": batch(requests(guarded, "/products/%d/", "404"), existing=False),
            "absent, an empty 404 without looking": batch(
                requests(handler(FLOOR), "/products/%d/", "404"), existing=False
            ),
            "absent, decorator": batch(requests(bare, "/decorated/%d/", "404"), existing=False),
        },
        rounds=rounds,
    )


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="bloomguard-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    set_up(folder)
    report = Report("requests", "Requests through Django's WSGI handler, with and without bloomguard")
    report.start()
    for alias, name in (("default", "SQLite"), ("postgresql", "PostgreSQL")):
        fill(alias)
        taken = measure(ROUNDS[alias])
        for who in taken:
            report.add(f"{name}: {who}", median(taken, who) / BATCH * 1e6, "us/request")
        report.add(
            f"{name}: existing IDs, middleware",
            ratio(taken, "existing, middleware", "existing"),
            against="without bloomguard",
            at_most=1.03,
        )
        report.add(
            f"{name}: existing IDs, the same handler twice",
            ratio(taken, "existing, the same again", "existing"),
            against="itself: the noise",
        )
        for who, target in (("middleware", 0.17), ("decorator", 0.30)):
            report.add(
                f"{name}: absent IDs, {who}",
                ratio(taken, f"absent, {who}", "absent"),
                against="without bloomguard",
                at_most=target,
                reason="Django needs most of it for any 404: its request, its signals, its log line and its page",
            )
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
