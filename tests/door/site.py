"""A WSGI and an ASGI server that answer one request, for tests of the door."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from bloomguard import asgi, wsgi


@dataclass
class Answer:
    """``sent`` are the headers as they were sent, in their order."""

    status: int
    sent: list[tuple[str, str]]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.sent}


class Wsgi:
    """``shield`` and Django's handler under WSGI; ``reached`` counts what gets through to Django."""

    def __init__(self) -> None:
        self.handler = WSGIHandler()
        self.application = wsgi.shield(self.handler)
        self.reached: list[str] = []
        get_response = self.handler.get_response
        self.handler.get_response = lambda request: self.reached.append(request.path) or get_response(request)

    @property
    def is_open(self) -> bool:
        return self.application is not self.handler

    def __call__(
        self, path: str, method: str = "GET", *, scheme: str = "http", mount: str = "", headers: Any = ()
    ) -> Answer:
        given: dict[str, Any] = {}
        path, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": query,
            "SCRIPT_NAME": mount,
            "SERVER_NAME": "testserver",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "testserver",
            "wsgi.url_scheme": scheme,
            "wsgi.input": io.BytesIO(),
        }
        environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in dict(headers).items()}

        def start_response(status: str, given_headers: list[tuple[str, str]]) -> None:
            given["status"], given["headers"] = int(status[:3]), given_headers

        response = self.application(environ, start_response)
        body = b"".join(response)
        if hasattr(response, "close"):
            response.close()
        return Answer(given["status"], given["headers"], body)


class Asgi:
    """The same under ASGI."""

    def __init__(self) -> None:
        self.handler = ASGIHandler()
        self.application = asgi.shield(self.handler)
        self.reached: list[str] = []
        get_response = self.handler.get_response_async

        async def counted(request: Any) -> Any:
            self.reached.append(request.path)
            return await get_response(request)

        self.handler.get_response_async = counted

    @property
    def is_open(self) -> bool:
        return self.application is not self.handler

    def __call__(
        self, path: str, method: str = "GET", *, scheme: str = "http", mount: str = "", headers: Any = ()
    ) -> Answer:
        path, _, query = path.partition("?")
        given = {"host": "testserver", **dict(headers)}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": scheme,
            "path": mount + path,
            "root_path": mount,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "server": ("testserver", 80),
        }
        return asyncio.run(self._ask(scope))

    async def _ask(self, scope: dict[str, Any]) -> Answer:
        sent: list[dict[str, Any]] = []
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.application(scope, incoming.get, send)
        headers = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))
