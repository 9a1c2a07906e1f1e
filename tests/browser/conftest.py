"""A real Chromium: ``make test-browser`` installs what is missing and insists; ``make test`` skips without it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
#: As root in a container, and without a word to any other host.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'"
)


def missing() -> str:
    """What a browser test needs and this machine does not have."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed"
    if not executable():
        return "Chromium is not installed"
    return "" if AXE.exists() else "axe-core is not installed"


def executable() -> str | None:
    """Where Chromium is."""
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@pytest.fixture(scope="module")
def chromium():
    """A browser for all tests of a module."""
    lack = missing()
    if lack and os.environ.get("BLOOMGUARD_TEST_BROWSER") != "required":
        pytest.skip(f"{lack}: run make test-browser")
    assert not lack, lack
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's event loop runs in this thread
        browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, settings, build, live_server):
    """``visit(path, width=..., **context)`` opens a page of the admin as its superuser, in a window of its own."""
    settings.ROOT_URLCONF = "config.urls"
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))
    cookie = {"name": settings.SESSION_COOKIE_NAME, "value": client.session.session_key, "url": live_server.url}
    contexts = []

    def open_page(path, width=1280, **context):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **context))
        contexts[-1].add_cookies([cookie])
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.said = []  # what the browser complains of
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.route("**/*", with_strict_policy)
        page.goto(f"{live_server.url}/admin/bloomguard/guardstate/{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()


def with_strict_policy(route):
    """Every page comes with a policy that allows nothing but the site's own files."""
    if route.request.resource_type != "document":
        route.continue_()
        return
    answer = route.fetch(max_redirects=0)
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})
