"""The door of an ASGI site, in ``asgi.py``:

application = shield(get_asgi_application())
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

if TYPE_CHECKING:
    from .door.door import Door
    from .door.page import NotFoundPage

Application = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]
#: The encoded headers of a response, and its body.
Page = tuple[tuple[tuple[bytes, bytes], ...], bytes]


def shield(application: Application) -> Application:
    """Wrap ``application``: answer absent IDs of guarded routes with a 404 before Django creates a request.

    If ``application`` is not the result of ``get_asgi_application()``, or the door has to stay shut for another reason
    (see the docs), logs the reason and returns ``application`` itself. Nothing blocks the event loop: a store on a
    server is awaited, and the database is queried in a thread.
    """
    from .door.door import open_door  # needs the app registry, which is loaded after the imports of asgi.py
    from .guards.counters import ablocked

    opened = open_door(application)
    if opened is None:
        return application
    door, methods, ask = opened, opened.methods, opened.aask
    ready: dict[tuple[NotFoundPage, str], Page] = {}
    own = ThreadSensitiveContext()

    async def shielded(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        found = None
        if scope["type"] == "http" and (method := scope["method"]) in methods:
            try:
                path = scope["path"]
                routes = door.index.candidates(path)
                if routes and path.isascii() and not scope.get("root_path"):
                    with _in_thread_of(own):
                        guard = await ask(method, path, routes, scope)
                        page = _page(door, scope) if guard is not None else None
                        if guard is not None and page is not None:
                            found = ready.get((page, method))
                            if found is None:
                                found = _encoded(page, method)
                                if not page.nonces:
                                    ready[page, method] = found
                            await ablocked(guard, None)
            except Exception as error:
                door.failed(error)
        if found is None:
            await application(scope, receive, send)
        else:
            # As Django does: hypercorn closes the connection, with all its streams, after an answer to half a request.
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
            if message["type"] == "http.disconnect":
                return
            headers, body = found
            # New ones each time: what is put around the door may change them.
            await send({"type": "http.response.start", "status": 404, "headers": list(headers)})
            await send({"type": "http.response.body", "body": body})

    return shielded


@contextmanager
def _in_thread_of(context: ThreadSensitiveContext) -> Iterator[None]:
    """Run routers and synchronous receivers in the thread of ``context``, one for all requests at the door.

    By default asgiref runs them in a thread that the background tasks of the process use too, each as long as it likes.
    With one thread for each request, as Django has it, their database connections would stay open.
    """
    before = SyncToAsync.thread_sensitive_context.set(context)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(before)


def _page(door: Door, scope: dict[str, Any]) -> NotFoundPage | None:
    proto_header = door.proto_header.removeprefix("HTTP_").replace("_", "-").lower().encode()
    given: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in given and name in (b"host", b"x-forwarded-host", proto_header):
            return None
        given[name] = value
    host = given.get(b"host")
    if door.takes_forwarded_host:
        host = given.get(b"x-forwarded-host", host)
    proto = given.get(proto_header)
    forwarded = None if proto is None else proto.decode("latin-1")
    page = None if host is None else door.page(host.decode("latin-1"), scope.get("scheme", "http"), forwarded)
    return page if page is not None and given.keys().isdisjoint(page.header_names) else None


def _encoded(page: NotFoundPage, method: str) -> Page:
    headers, body = page.answer(method)
    # The names as Django sends them: HTTP/1.1 shows their case.
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers), body
