"""The site's own 404 as bytes: compare the responses to probes, and build the page that the door sends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

Headers = tuple[tuple[str, str], ...]

_CSP = ("content-security-policy", "content-security-policy-report-only")
#: Headers that differ whenever the bodies differ.
_OF_THE_BODY = ("content-length", "etag")
#: In place of a header that a response does not have.
_NONE = ("", None)
#: At least 8 characters: a shorter token could occur in a page by chance.
_NONCE = re.compile(r"'nonce-([A-Za-z0-9+/_-]{8,}={0,2})'")


class DoorClosed(Exception):
    """The door has to stay shut; the message is the reason."""


@dataclass(frozen=True)
class ProbeResponse:
    """The response to a probe. ``asked`` describes the request: ``GET http://a.example/x/ with cookies``."""

    asked: str
    method: str
    status: int
    reason_phrase: str
    headers: Headers
    body: bytes

    @cached_property
    def nonces(self) -> tuple[str, ...]:
        """The nonces in its Content-Security-Policy."""
        policies = [value for name, value in self.headers if name.lower() in _CSP]
        return tuple(dict.fromkeys(nonce for policy in policies for nonce in _NONCE.findall(policy)))

    @cached_property
    def varies(self) -> frozenset[str]:
        """Names of the request headers in ``Vary``, in lower case."""
        found = {name.strip().lower() for name in self._by_name.get("vary", ("", ""))[1].split(",")} - {""}
        if "accept-language" in found:  # LocaleMiddleware reads a cookie too, and leaves it out of `Vary`
            found.add("cookie")
        return frozenset(found)

    def difference(self, other: ProbeResponse) -> str:
        """Return what differs between the two; empty if they agree. The body of a HEAD is ignored."""
        if self.status != other.status:
            return f"the status: {self.status} and {other.status}"
        mine, theirs = self._by_name, other._by_name
        differing = [each for each in sorted(mine | theirs) if mine.get(each, _NONE)[1] != theirs.get(each, _NONE)[1]]
        bodies = {each._masked(each.body.decode("latin-1")) for each in (self, other)}
        if self.method != "HEAD" and len(bodies) > 1:
            differing = [each for each in differing if each not in _OF_THE_BODY]
            if not differing:
                return "the body"
        return f"the header {(theirs | mine)[differing[0]][0]}" if differing else ""

    @cached_property
    def _by_name(self) -> dict[str, tuple[str, str]]:
        """Map each header's name in lower case to its name as sent and its value, with nonces masked."""
        return {
            name.lower(): (name, self._masked(value) if name.lower() in _CSP else value)
            for name, value in self.headers
            if name.lower() != "date"
        }

    def _masked(self, text: str) -> str:
        for place, nonce in enumerate(self.nonces):
            text = text.replace(nonce, f"\0{place}\0")
        return text


@dataclass(frozen=True, eq=False)
class NotFoundPage:
    """A 404 that is ready to be sent.

    Requests with one of the headers ``varies`` (names in lower case) must not get it, nor those with one of the keys
    ``signs_in`` of ``META``, by which a middleware signs a visitor in. ``nonces`` are the tokens in
    ``headers`` and ``body`` that differ between responses. ``any_port``: it is the same for each port of the host.
    """

    status: str
    headers: Headers
    head_headers: Headers
    body: bytes
    varies: frozenset[str]
    nonces: tuple[str, ...]
    any_port: bool
    signs_in: frozenset[str]

    @cached_property
    def environ_keys(self) -> tuple[str, ...]:
        """The keys of these headers in a WSGI environment."""
        names = [name.upper().replace("-", "_") for name in sorted(self.varies)]
        found = (name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}" for name in names)
        return (*found, *sorted(self.signs_in))

    @cached_property
    def header_names(self) -> frozenset[bytes]:
        """The names of these headers in an ASGI scope."""
        signs_in = (name.removeprefix("HTTP_").replace("_", "-").lower() for name in self.signs_in)
        return frozenset(name.encode("latin-1") for name in (*self.varies, *signs_in))

    def answer(self, method: str) -> tuple[Headers, bytes]:
        """Return the headers and the body for one request, with new nonces.

        HEAD has the body too, as Django's responses do: the server drops it, and wrappers may set headers by it.
        """
        headers, body = self.head_headers if method == "HEAD" else self.headers, self.body
        for old in self.nonces:
            new = secrets.token_urlsafe(len(old))[: len(old)]
            headers = _with_nonce(headers, old, new)
            body = body.replace(old.encode(), new.encode())
        return headers, body


def make_page(
    get: ProbeResponse,
    head: ProbeResponse,
    others: Iterable[ProbeResponse],
    *,
    any_port: bool,
    varies: frozenset[str],
    signs_in: frozenset[str],
) -> NotFoundPage:
    """Build the page of one host and scheme from the responses to a GET and a HEAD, with which all ``others`` agree.

    ``varies`` are headers that the responses do not name. Raises :class:`DoorClosed` if two responses differ; it names
    the difference and both requests.
    """
    others = list(others)
    if get.status != head.status:
        raise DoorClosed(_differ(get, head, get.difference(head)))
    for other in others:
        base = head if other.method == "HEAD" else get
        if difference := base.difference(other):
            raise DoorClosed(_differ(base, other, difference))
    if "*" in get.varies:
        raise DoorClosed(f"{get.asked} has Vary: *")
    nonces = get.nonces if any(other.nonces != get.nonces for other in (head, *others)) else ()
    if len(head.nonces) != len(get.nonces):
        raise DoorClosed(_differ(get, head, "the number of nonces"))
    head_headers = head.headers
    if nonces:  # use the tokens of the GET in the headers of the HEAD
        for old, new in zip(head.nonces, get.nonces):
            head_headers = _with_nonce(head_headers, old, new)
    return NotFoundPage(
        status=f"{get.status} {get.reason_phrase}",
        headers=_sent(get.headers),
        head_headers=_sent(head_headers),
        body=get.body,
        # No probe sends credentials.
        varies=get.varies | head.varies | varies | {"authorization"},
        nonces=nonces,
        any_port=any_port,
        signs_in=signs_in,
    )


def _differ(one: ProbeResponse, other: ProbeResponse, difference: str) -> str:
    return f"{one.asked} and {other.asked} differ in {difference}"


def _with_nonce(headers: Headers, old: str, new: str) -> Headers:
    return tuple((name, value.replace(old, new) if name.lower() in _CSP else value) for name, value in headers)


def _sent(headers: Headers) -> Headers:
    """Return the headers to send. The server adds ``Date``; caches must not keep the page: the row may be created."""
    found = tuple((name, value) for name, value in headers if name.lower() != "date")
    if any(name.lower() == "cache-control" for name, _ in found):
        return found
    return (*found, ("Cache-Control", "no-store"))
