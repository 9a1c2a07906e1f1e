"""The guards' page of the admin, with 50 guards and a month of figures: ``make bench-admin``.

All guards have filters of their own, in files, and figures for every hour of a month and minute of a day. The page
is asked for through Django's test client, by a superuser, once to open the filters and then for each round.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

GUARDS, ROWS, ROUNDS = 50, 10_000, 30
PAGE = "/admin/bloomguard/guardstate/"


def set_up(folder: Path) -> None:
    """A project with the admin and its guards' page, as ``startproject`` writes one."""
    import django
    from django.conf import settings

    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    processors = [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]
    settings.configure(
        SECRET_KEY="for a benchmark",
        BASE_DIR=folder,
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF="bench.admin",
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.staticfiles",
            "bloomguard",
            "tests.shop",
        ],
        MIDDLEWARE=middleware,
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": processors},
            }
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        STATIC_URL="static/",
        USE_TZ=True,
    )
    django.setup()


def __getattr__(name: str) -> Any:
    """This module is the URLconf as well, once there are settings."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib import admin
    from django.urls import path

    return [path("admin/", admin.site.urls)]


def fill() -> list[Any]:
    """``GUARDS`` guards, each with a filter and with all the figures that are kept."""
    from django.core.management import call_command

    from bloomguard.guards import Guard, registry
    from bloomguard.guards.counters import NAMES
    from bloomguard.rebuild import Rebuild, run_all
    from bloomguard.stores import stores
    from bloomguard.stores.base import COLUMNS, Page
    from bloomguard.stores.base import ROWS as PAGE_ROWS
    from tests.shop.models import Product

    call_command("migrate", verbosity=0, run_syncdb=True)
    Product.objects.bulk_create(Product(pk=7 * number) for number in range(1, ROWS))
    for guard in list(registry):
        registry.remove(guard)
    for number in range(GUARDS):
        registry.add(type("BenchGuard", (Guard,), {"name": f"guard-{number:02}", "filter": "bloom"})(Product))
    run_all([Rebuild(guard) for guard in registry])
    now = int(time.time())
    for step, seconds in ((60, 86_400), (3_600, 31 * 86_400)):
        pages: dict[int, dict[int, int]] = {}
        for row in range((now - seconds) // step, now // step + 1):
            cells = pages.setdefault(row // PAGE_ROWS, {})
            cells |= {row % PAGE_ROWS * COLUMNS + column: 1_000 + column for column in range(len(NAMES))}
        for guard in registry:
            for number, cells in pages.items():
                stores["default"].add_metrics(Page(guard.name, step, number), cells)
    return list(registry)


def work(ask: Callable[[], None]) -> float:
    """Seconds of the processor that it takes, at best of ten times."""
    taken = []
    for _ in range(10):
        began = time.process_time()
        ask()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> int:
    from bench.report import Report, interleave, median

    folder = Path(tempfile.mkdtemp(prefix="bloomguard-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    set_up(folder)
    guards = fill()

    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client()
    client.force_login(User.objects.create_superuser("alice"))

    def ask(period: str) -> None:
        page = client.get(f"{PAGE}?period={period}").content
        assert page.count(b"data-guard=") == len(guards)
        assert page.count(b"<rect x=") > 150

    report = Report("admin", f"The guards' page with {GUARDS} guards and all figures that are kept")
    report.start()
    began, began_work = time.perf_counter(), time.process_time()
    ask("month")
    report.add("the first page of a process, which opens all filters", (time.perf_counter() - began) * 1e3, "ms")
    report.add("the first page's processor time", (time.process_time() - began_work) * 1e3, "ms", at_most=300)
    taken = interleave(
        {period: lambda period=period: ask(period) for period in ("hour", "day", "month")}, rounds=ROUNDS
    )  # type: ignore[misc]
    for period in taken:
        report.add(
            f"figures of the last {period}: a page, at best",
            min(taken[period]) * 1e3,
            "ms",
            at_most=300,
            reason="the machine was busy: see what the processor took, for a page waits for nothing but files",
        )
        report.add(f"figures of the last {period}: a page, median", median(taken, period) * 1e3, "ms")
        report.add(f"figures of the last {period}: a page's processor time", work(partial(ask, period)) * 1e3, "ms")
    with CaptureQueriesContext(connection) as queries:
        ask("month")
    # One more reads the state rows, on a connection of its own.
    report.add("queries", len(queries) + 1, "a page", at_most=15)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
