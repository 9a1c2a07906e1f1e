"""A WSGI and an ASGI server for the sites of :mod:`tests.door.stack_sites`, with a door or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.core import mail
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from bloomguard import asgi, wsgi
from tests.support.calls import call_asgi, call_wsgi

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
        given: dict[str, Any] = {"headers": request.headers, "scheme": request.scheme, "body": request.body}
        return Answer(*call_wsgi(self.application, request.url, request.method, **given, REMOTE_ADDR=request.client))

    async def _aask(self, request: Request) -> Answer:
        given: dict[str, Any] = {"headers": request.headers, "scheme": request.scheme, "body": request.body}
        client = (request.client, 50_000)
        self._body = None
        try:
            return Answer(*await call_asgi(self.application, request.url, request.method, **given, client=client))
        finally:
            if self._body is not None:
                self._body.close()  # Django leaves it open if a page fails


def _caught(ask: Callable[[], Answer]) -> Answer:
    """The answer, or the error that is left to the server."""
    try:
        return ask()
    except Exception as error:
        return Answer(0, [], repr(error).encode())
