"""The front door of an ASGI site.

application = shield(get_asgi_application())
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers.capture import Page
    from .answers.frontdoor import FrontDoor

Application = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]
#: What is sent: a start and a body.
Messages = tuple[dict[str, Any], dict[str, Any]]


def shield(application: Application) -> Application:
    """``application``, with absent IDs of guarded routes answered 404 before Django's request machinery.

    ``application`` is what ``get_asgi_application()`` returns. Raises :class:`ConfigurationError` if it is not. Where
    the front door has to stay shut (see the docs), which is logged, ``application`` itself comes back. Nothing waits on
    the event loop: a store is awaited, and a verdict that needs the database asked for in a thread.
    """
    from .answers.frontdoor import front_door  # needs the apps, which asgi.py loads after its imports
    from .counting.outcomes import ablocked
    from .guards import Guard
    from .routing.awaiting import awaited

    found = front_door(application)
    if found is None:
        return application
    door, methods, absent, decide_now = found, found.methods, found.absent, Guard.decide_now
    ready: dict[tuple[Page, str], Messages] = {}

    async def shielded(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        messages = None
        if scope["type"] == "http" and (method := scope["method"]) in methods:
            try:
                path = scope["path"]
                if path.isascii() and not scope.get("root_path"):
                    guard = absent(method, path, decide_now)
                    if guard is None:
                        guard = await awaited(lambda decide: absent(method, path, decide))
                    page = _page(door, scope) if guard else None
                    if guard and page is not None:
                        await ablocked(guard, None)
                        messages = ready.get((page, method)) or ready.setdefault(
                            (page, method), _messages(page, method)
                        )
            except Exception as error:
                door.failed(error)
        if messages is None:
            await application(scope, receive, send)
        else:
            await send(messages[0])
            await send(messages[1])

    return shielded


def _page(door: FrontDoor, scope: dict[str, Any]) -> Page | None:
    header, secure_value = door.proxy_header or ("", "")
    forwarded_proto = header.removeprefix("HTTP_").replace("_", "-").lower().encode()
    host = forwarded_host = None
    scheme, has_cookie, told = scope.get("scheme", "http"), False, None
    for name, value in scope["headers"]:
        if name == b"host":
            if host is not None:
                return None
            host = value
        elif name == b"cookie":
            has_cookie = True
        elif name == b"x-forwarded-host":
            if forwarded_host is not None:
                return None
            forwarded_host = value
        elif name == forwarded_proto:
            if told is not None:
                return None
            told = value.decode("latin-1").split(",", 1)[0].strip()
            scheme = "https" if told == secure_value else "http"
    if door.takes_forwarded_host and forwarded_host is not None:
        host = forwarded_host
    if host is None:
        return None
    return door.page(host.decode("latin-1"), scheme == "https", has_cookie)


def _messages(page: Page, method: str) -> Messages:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in page.headers]
    body = b"" if method == "HEAD" else page.body
    return (
        {"type": "http.response.start", "status": 404, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
