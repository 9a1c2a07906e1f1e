"""The front door behind real servers: gunicorn, uvicorn and granian."""

from __future__ import annotations

import asyncio
import http.client
import time
from contextlib import contextmanager

import pytest

from bloomguard.sync import state
from tests.conftest import forget
from tests.front import Asgi
from tests.processes import end
from tests.servers import free_port, wait_for
from tests.shop.models import Product

SERVERS = {
    "gunicorn sync": "gunicorn -w 2 -k sync -b 127.0.0.1:{port} tests.front_site:application",
    "gunicorn gthread": "gunicorn -w 1 -k gthread --threads 4 -b 127.0.0.1:{port} tests.front_site:application",
    "gunicorn preload": "gunicorn -w 2 --preload -b 127.0.0.1:{port} tests.front_site:application",
    "uvicorn": "uvicorn --port {port} --lifespan off tests.front_site:async_application",
    "granian wsgi": "granian --interface wsgi --port {port} tests.front_site:application",
    "granian asgi": "granian --interface asginl --port {port} tests.front_site:async_application",
}

#: So often in a row a busy machine does not hit the same request.
RUNS = 20


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


@pytest.mark.parametrize(
    "middleware", [[], ["bloomguard.middleware.BloomGuardMiddleware"]], ids=["front door", "middleware"]
)
def test_nothing_holds_the_event_loop_up(build, settings, caplog, clock, middleware, monkeypatch):
    """With asyncio's debug mode on, no step of an answer takes 5 ms, though reading the state rows takes 20.

    A busy machine takes as much from anybody, but not from the same request in every run.
    """
    settings.MIDDLEWARE = middleware
    Product.objects.create(pk=7)
    build("product")
    site = Asgi()
    if middleware:
        site.application = site.handler
    execute = state.table.connection.execute
    monkeypatch.setattr(state.table.connection, "execute", lambda *args: (time.sleep(0.02), execute(*args))[1])

    async def flood():
        asyncio.get_running_loop().slow_callback_duration = 0.005
        slow = set()
        for number in range(60):
            if number % 20 == 0:
                clock.sleep(5)
            answer = await asyncio.create_task(site._ask(scope(number)))
            await asyncio.sleep(0)  # by now the step that got the answer has been timed
            assert answer.status == 404
            assert answer.headers["cache-control"] == "no-store"
            if any(record.name == "asyncio" for record in caplog.records):
                slow.add(number)
            caplog.clear()
        return slow

    def scope(number):
        return {
            "type": "http", "method": "GET", "scheme": "http", "path": f"/products/{2 * number + 8}/", "root_path": "",
            "query_string": b"", "headers": [(b"host", b"testserver")],
        }  # fmt: skip

    always = set(range(60))
    for _ in range(RUNS):
        forget()
        always &= asyncio.run(flood(), debug=True)
        if not always:
            break

    assert always == set()
