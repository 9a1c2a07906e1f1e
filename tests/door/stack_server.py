"""A WSGI and an ASGI server for the sites of :mod:`tests.door.stack_sites`, with a door or without."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.core import mail
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from bloomguard import asgi, wsgi

from . import stack_middlewares as own
from .stack_sites import Request


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    #: What the middlewares and Django's logger saw, and the sessions that there are then.
    seen: list[Any] = field(default_factory=list)
    at_the_door: bool = False

    def __str__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:300]!r} {self.seen}"


class Server:
    """Django's handler, behind the door or not; counts what reaches it."""

    def __init__(self, is_async: bool, is_shielded: bool) -> None:
        self.is_async = is_async
        self.handler: Any = ASGIHandler() if is_async else WSGIHandler()
        self.application: Any = self.handler
        if is_shielded:
            self.application = (asgi if is_async else wsgi).shield(self.handler)
        self.is_open = self.application is not self.handler
        self.reached = 0
        self._body: Any = None
        name = "get_response_async" if is_async else "get_response"
        get_response = getattr(self.handler, name)

        def counted(request: Any) -> Any:
            self.reached += 1
            return get_response(request)

        setattr(self.handler, name, counted)
        if is_async:
            read_body = self.handler.read_body

            async def noted(receive: Any) -> Any:
                self._body = await read_body(receive)
                return self._body

            self.handler.read_body = noted

    def ask(self, requests: list[Request]) -> list[Answer]:
        if self.is_async:
            return async_to_sync(self._ask_all)(requests)
        return [self._noted(self.reached, _caught(partial(self._ask, each))) for each in requests]

    async def _ask_all(self, requests: list[Request]) -> list[Answer]:
        return [self._noted(self.reached, await self._acaught(each)) for each in requests]

    async def _acaught(self, request: Request) -> Answer:
        try:
            return await self._aask(request)
        except Exception as error:
            return Answer(0, [], repr(error).encode())

    def _noted(self, before: int, answer: Answer) -> Answer:
        answer.seen = [*own.log, ("mails", len(mail.outbox))]
        answer.at_the_door = self.reached == before
        own.log.clear()
        mail.outbox.clear()
        return answer

    def _ask(self, request: Request) -> Answer:
        path, _, query = request.url.partition("?")
        given: dict[str, Any] = {}
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": query,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "testserver",
            "SERVER_PORT": "443" if request.scheme == "https" else "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": request.client,
            "wsgi.url_scheme": request.scheme,
            "wsgi.input": io.BytesIO(request.body),
        }
        for name, value in request.headers.items():
            key = name.upper().replace("-", "_")
            environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value

        def start_response(status: str, headers: list[tuple[str, str]]) -> None:
            given.update(status=int(status[:3]), headers=headers)

        response = self.application(environ, start_response)
        body = b"".join(response)
        getattr(response, "close", lambda: None)()
        return Answer(given["status"], given["headers"], body)

    async def _aask(self, request: Request) -> Answer:
        path, _, query = request.url.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in request.headers.items()],
            "client": (request.client, 50_000),
            "server": ("testserver", 443 if request.scheme == "https" else 80),
        }
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        incoming = iter([{"type": "http.request", "body": request.body, "more_body": False}])

        async def receive() -> Any:
            if (message := next(incoming, None)) is None:
                await never.wait()
            return message

        never = asyncio.Event()
        self._body = None
        try:
            await self.application(scope, receive, send)
        finally:
            if self._body is not None:
                self._body.close()  # Django leaves it open if a page fails
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent[0]["headers"]]
        return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))


def _caught(ask: Callable[[], Answer]) -> Answer:
    """The answer, or the error that is left to the server."""
    try:
        return ask()
    except Exception as error:
        return Answer(0, [], repr(error).encode())
