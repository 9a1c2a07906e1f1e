"""One request to a WSGI or an ASGI application, as a server sends it, and what is answered."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

#: The status, the headers as they were sent, and the body.
Sent = tuple[int, list[tuple[str, str]], bytes]
_PORTS = {"http": 80, "https": 443}
#: Headers that WSGI gives without ``HTTP_``.
_BARE = {"CONTENT_TYPE", "CONTENT_LENGTH"}


def call_wsgi(
    application: Any,
    url: str,
    method: str = "GET",
    *,
    headers: Mapping[str, str],
    scheme: str = "http",
    mount: str = "",
    body: bytes = b"",
    **environ: str,
) -> Sent:
    """Ask ``application`` for the path and query of ``url``; ``environ`` is what the server adds to the usual."""
    path, _, query = url.partition("?")
    asked: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "SCRIPT_NAME": mount,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": str(_PORTS[scheme]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(body),
        **environ,
    }
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        asked[key if key in _BARE else f"HTTP_{key}"] = value
    given: dict[str, Any] = {}

    def start_response(status: str, sent: list[tuple[str, str]], exc_info: Any = None) -> None:
        given.update(status=int(status[:3]), headers=sent)

    response = application(asked, start_response)
    whole = b"".join(response)
    if hasattr(response, "close"):
        response.close()
    return given["status"], given["headers"], whole


async def call_asgi(
    application: Any,
    url: str,
    method: str = "GET",
    *,
    headers: Mapping[str, str],
    scheme: str = "http",
    mount: str = "",
    body: bytes = b"",
    **scope: Any,
) -> Sent:
    """The same under ASGI; the client stays, and sends nothing after ``body``."""
    path, _, query = url.partition("?")
    asked = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": mount + path,
        "root_path": mount,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "server": ("testserver", _PORTS[scheme]),
        **scope,
    }
    return await call_asgi_with(application, asked, body)


async def call_asgi_with(application: Any, scope: dict[str, Any], body: bytes = b"") -> Sent:
    """Ask ``application`` with this scope, of which a test decides each part."""
    sent: list[dict[str, Any]] = []
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application(scope, incoming.get, send)
    found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])
