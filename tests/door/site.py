"""A WSGI and an ASGI server that answer one request, for tests of the door."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from bloomguard import asgi, wsgi
from tests.support.calls import call_asgi, call_wsgi


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
        given = {"host": "testserver", **dict(headers)}
        return Answer(*call_wsgi(self.application, path, method, headers=given, scheme=scheme, mount=mount))


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
        given = {"host": "testserver", **dict(headers)}
        asked = call_asgi(self.application, path, method, headers=given, scheme=scheme, mount=mount)
        return Answer(*asyncio.run(asked))
