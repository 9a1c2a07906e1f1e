"""The site's own 404 as bytes: compare the answers of probes, and make the page that the door sends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

#: Whether the code runs for a probe: then no guard answers, for the door needs the site's answer and not ours.
probing: ContextVar[bool] = ContextVar("bloomguard_probing", default=False)

Headers = tuple[tuple[str, str], ...]

_CSP = ("content-security-policy", "content-security-policy-report-only")
#: They differ wherever bodies differ.
_OF_THE_BODY = ("content-length", "etag")
#: A shorter token could stand in a page by chance.
_NONCE = re.compile(r"'nonce-([A-Za-z0-9+/_-]{8,}={0,2})'")


class Shut(Exception):
    """The door has to stay shut; the message is the reason."""


@dataclass(frozen=True)
class Answer:
    """A probe's answer. ``asked`` is the request in words, such as ``GET http://a.example/x/ with cookies``."""

    asked: str
    method: str
    status: int
    reason_phrase: str
    headers: Headers
    body: bytes

    @cached_property
    def nonces(self) -> tuple[str, ...]:
        """The nonces of its Content-Security-Policy."""
        policies = [value for name, value in self.headers if name.lower() in _CSP]
        return tuple(dict.fromkeys(nonce for policy in policies for nonce in _NONCE.findall(policy)))

    @cached_property
    def varies(self) -> frozenset[str]:
        """Names of the request headers that the answer depends on, in lower case."""
        found = {name.strip().lower() for name in self._by_name.get("vary", ("", ""))[1].split(",")} - {""}
        if "accept-language" in found:  # LocaleMiddleware looks for a cookie as well, and does not say so
            found.add("cookie")
        return frozenset(found)

    def difference(self, other: Answer) -> str:
        """Where the two differ, in words; empty if they agree. A HEAD's body is not looked at."""
        if self.status != other.status:
            return f"the status: {self.status} and {other.status}"
        differing = []
        for name in sorted(self._by_name.keys() | other._by_name.keys()):
            mine, theirs = self._by_name.get(name), other._by_name.get(name)
            if (mine and mine[1]) != (theirs and theirs[1]):
                differing.append((mine or theirs or (name,))[0])
        if self.method != "HEAD" and self._masked_body != other._masked_body:
            differing = [name for name in differing if name.lower() not in _OF_THE_BODY] or [""]
        if not differing:
            return ""
        return f"the header {differing[0]}" if differing[0] else "the body"

    @cached_property
    def _by_name(self) -> dict[str, tuple[str, str]]:
        """By its name in lower case: the header's name as it is written, and its value without nonces."""
        return {
            name.lower(): (name, self._masked(value) if name.lower() in _CSP else value)
            for name, value in self.headers
            if name.lower() != "date"
        }

    @cached_property
    def _masked_body(self) -> bytes:
        return self._masked(self.body.decode("latin-1")).encode("latin-1")

    def _masked(self, text: str) -> str:
        for place, nonce in enumerate(self.nonces):
            text = text.replace(nonce, f"\0{place}\0")
        return text


@dataclass(frozen=True, eq=False)
class Page:
    """A 404 that is ready to be sent.

    It is not for requests that carry one of the headers ``varies``, in lower case. ``nonces`` are the tokens in
    ``headers`` and ``body`` that differ from answer to answer. ``any_port`` says that the page is the same whatever
    port stands in the request's host.
    """

    status: str
    headers: Headers
    head_headers: Headers
    body: bytes
    varies: frozenset[str]
    nonces: tuple[str, ...]
    any_port: bool

    @cached_property
    def environ_keys(self) -> tuple[str, ...]:
        """Where a WSGI environment has the headers ``varies``."""
        names = [name.upper().replace("-", "_") for name in sorted(self.varies)]
        return tuple(name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}" for name in names)

    @cached_property
    def header_names(self) -> frozenset[bytes]:
        """``varies`` as an ASGI scope has them."""
        return frozenset(name.encode("latin-1") for name in self.varies)

    def answer(self, method: str) -> tuple[Headers, bytes]:
        """Headers and body for one request, with nonces of its own."""
        headers = self.head_headers if method == "HEAD" else self.headers
        body = b"" if method == "HEAD" else self.body
        for old in self.nonces:
            new = secrets.token_urlsafe(len(old))[: len(old)]
            headers = tuple(
                (name, value.replace(old, new) if name.lower() in _CSP else value) for name, value in headers
            )
            body = body.replace(old.encode(), new.encode())
        return headers, body


def page_of(get: Answer, head: Answer, others: Iterable[Answer], *, any_port: bool) -> Page:
    """The page of one host and scheme: the answers to a GET and to a HEAD, with which all ``others`` agree.

    Raises :class:`Shut`, which names what differs and between which requests.
    """
    others = list(others)
    if get.status != head.status:
        raise Shut(_differ(get, head, get.difference(head)))
    for other in others:
        base = head if other.method == "HEAD" else get
        if difference := base.difference(other):
            raise Shut(_differ(base, other, difference))
    if "*" in get.varies:
        raise Shut(f"{get.asked} has Vary: *")
    nonces = get.nonces if any(other.nonces != get.nonces for other in (head, *others)) else ()
    if len(head.nonces) != len(get.nonces):
        raise Shut(_differ(get, head, "the number of nonces"))
    if nonces:  # the page has one set of tokens
        swap = dict(zip(head.nonces, get.nonces))
        head_headers = tuple(
            (name, _replaced(value, swap) if name.lower() in _CSP else value) for name, value in head.headers
        )
    else:
        head_headers = head.headers
    return Page(
        status=f"{get.status} {get.reason_phrase}",
        headers=_sent(get.headers),
        head_headers=_sent(head_headers),
        body=get.body,
        # What somebody with credentials is answered was not probed.
        varies=get.varies | head.varies | {"authorization"},
        nonces=nonces,
        any_port=any_port,
    )


def _differ(one: Answer, other: Answer, difference: str) -> str:
    return f"{one.asked} and {other.asked} differ in {difference}"


def _replaced(text: str, swap: dict[str, str]) -> str:
    for old, new in swap.items():
        text = text.replace(old, new)
    return text


def _sent(headers: Headers) -> Headers:
    """The headers that go out: a server adds the date, and no cache keeps the page past the row's creation."""
    found = tuple((name, value) for name, value in headers if name.lower() != "date")
    if any(name.lower() == "cache-control" for name, _ in found):
        return found
    return (*found, ("Cache-Control", "no-store"))
