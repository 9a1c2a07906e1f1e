"""The door behind real servers: gunicorn, uvicorn and granian."""

from __future__ import annotations

import asyncio
import http.client
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db.backends.utils import CursorWrapper

from bloomguard.state.connection import StateConnection
from bloomguard.state.table import StateTable
from bloomguard.stores.file import FileStore
from tests.conftest import forget
from tests.door.site import Asgi
from tests.shop.models import Product
from tests.support.calls import call_asgi
from tests.support.processes import end
from tests.support.servers import free_port, wait_for

SERVERS = {
    "gunicorn sync": "gunicorn -w 2 -k sync -b 127.0.0.1:{port} tests.support.front_site:application",
    "gunicorn gthread": "gunicorn -w 1 -k gthread --threads 4 -b 127.0.0.1:{port} tests.support.front_site:application",
    "gunicorn preload": "gunicorn -w 2 --preload -b 127.0.0.1:{port} tests.support.front_site:application",
    "uvicorn": "uvicorn --port {port} --lifespan off tests.support.front_site:async_application",
    "granian wsgi": "granian --interface wsgi --port {port} tests.support.front_site:application",
    "granian asgi": "granian --interface asginl --port {port} tests.support.front_site:async_application",
}


@contextmanager
def running(start, command):
    """The server's port, once it answers; it ends with the block."""
    port = free_port()
    module, *arguments = command.format(port=port).split()
    child = start(code=f"import os, sys; os.execv(sys.executable, [sys.executable, '-m', {module!r}, *{arguments!r}])")
    try:
        wait_for(port, child)
        yield port
    finally:
        end(child)


def ask(connection, path, method="GET"):
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}


@pytest.mark.parametrize("server", SERVERS)
def test_the_front_door_stands_behind(server, build, start):
    """Absent IDs never reach Django, existing ones do, on one connection that is kept alive."""
    Product.objects.create(pk=7)
    build("product")

    with running(start, SERVERS[server]) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(2):
            status, body, headers = ask(connection, "/products/8/")
            assert (status, "not found" in body.decode().lower(), headers["x-frame-options"]) == (404, True, "DENY")
            assert headers["cache-control"] == "no-store"
            assert "x-django" not in headers
            status, body, headers = ask(connection, "/products/8/", "HEAD")
            assert (status, body, "x-django" in headers) == (404, b"", False)
            status, body, headers = ask(connection, "/products/7/")
            assert (status, body, headers["x-django"]) == (200, b"product 7", "yes")
        connection.close()
        Product.objects.create(pk=8)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert ask(connection, "/products/8/")[0] == 200
        connection.close()


#: What may take its time, by the names of Python's audit hooks.
AUDITED = {"open", "socket.connect", "socket.getaddrinfo", "sqlite3.connect", "fcntl.flock", "time.sleep"}
#: Notes of who does what, while somebody wants them: a hook can never be taken away.
listeners = []
sys.addaudithook(lambda event, args: event in AUDITED and [note(event, args) for note in listeners])


@pytest.fixture
def waits(monkeypatch, tmp_path):
    """Whatever may wait, as pairs: whether it was done in a thread that runs an event loop, and what it was."""
    noted = []

    def note(what, args=()):
        # Modules and templates are opened once in a process's life; the guards' files lie in the test's own folder.
        if what != "open" or str(args[0]).startswith(str(tmp_path)):
            noted.append((asyncio._get_running_loop() is not None, what))

    for owner, name in (
        (StateTable, "renew"),
        (StateConnection, "execute"),
        (CursorWrapper, "execute"),
        (CursorWrapper, "executemany"),
        (FileStore, "open"),
    ):
        original = getattr(owner, name)
        what = f"{owner.__name__}.{name}"
        monkeypatch.setattr(
            owner, name, lambda *args, what=what, act=original, **kwargs: (note(what), act(*args, **kwargs))[1]
        )
    listeners.append(note)
    yield noted
    listeners.remove(note)


@pytest.mark.parametrize("middleware", [[], ["bloomguard.middleware.BloomGuardMiddleware"]], ids=["door", "middleware"])
def test_nothing_holds_the_event_loop_up(build, settings, clock, middleware, waits):
    """State rows are read and filters are opened, by statements and on files, but never in the loop's own thread."""
    settings.MIDDLEWARE = middleware
    Product.objects.create(pk=7)
    build("product")
    site = Asgi()
    if middleware:
        site.application = site.handler
    forget()
    waits.clear()

    async def flood():
        for number in range(60):
            if number % 20 == 0:
                clock.sleep(5)  # no lease lasts so long
            url = f"/products/{2 * number + 8}/"
            status, headers, _ = await call_asgi(site.application, url, headers={"Host": "testserver"})
            assert status == 404
            assert {name.lower(): value for name, value in headers}["cache-control"] == "no-store"

    asyncio.run(flood())

    assert [what for on_loop, what in waits if on_loop] == []
    done = Counter(what for _, what in waits)
    assert done["StateConnection.execute"] >= 3
    assert done["StateTable.renew"] >= 3
    assert min(done["FileStore.open"], done["open"], done["CursorWrapper.execute"]) >= 1
