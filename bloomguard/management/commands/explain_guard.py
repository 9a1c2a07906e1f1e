"""``manage.py explain_guard PATH``: show which guard answers for a path, its verdict, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.management.base import CommandError, CommandParser

from ...routes.explain import Explanation, GuardAnswer, explain
from ...state.verdicts import in_words
from .. import UrlsCommand, counted, room_in_words


class Command(UrlsCommand):
    """``manage.py explain_guard``."""

    help = "Show what a guard does with one path, and why. The output contains the key: do not publish it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", help="a path such as /cities/7/, or a whole URL")
        parser.add_argument("--method", default="GET", type=str.upper, help="the request method (default: GET)")
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        given = options["path"]
        try:
            # Two slashes at the start of a path would be those before a host.
            path = unquote(urlsplit(f"http://host{given}" if given.startswith("/") else given).path)
        except ValueError as error:
            raise CommandError(f"{given!r} is not a URL: {error}") from error
        if not path.startswith("/"):
            raise CommandError(f"{given!r} is not a path: it must begin with a slash, as in /cities/7/")
        found = explain(path, options["method"], options["urlconf"])
        if options["json"]:
            self.stdout.write(json.dumps(asdict(found), default=str))
            return
        blocks = [_route(found), *map(_guard, found.guards)]
        self.stdout.write("\n\n".join("\n".join(f"{title:<11} {text}" for title, text in lines) for lines in blocks))


def _route(found: Explanation) -> Iterator[tuple[str, str]]:
    yield "request", f"{found.method} {found.path}"
    if found.pattern:
        yield "route", f"{found.pattern}{f', named {found.name}' if found.name else ''}"
        yield "", f"Django takes {found.resolve_us:,.0f} us to find it"
    if found.unguarded:
        yield "guard", f"none: {found.unguarded}"


def _guard(answer: GuardAnswer) -> Iterator[tuple[str, str]]:
    yield "guard", f"{answer.guard}, of {answer.model} by {answer.lookup}"
    yield "key", f"{answer.key or 'none'}, of {answer.value or 'nothing in the path'}"
    yield "verdict", f"{in_words(answer.verdict, answer.reason)}: {answer.meaning}"
    yield "outcome", answer.outcome
    yield "store", ", ".join(filter(None, [answer.store, answer.backend, answer.place]))
    if identity := answer.identity:
        yield "", f"identity {identity}"
    if generation := answer.generation:
        yield "generation", f"{generation['name']}, a {generation['kind']} filter"
        room = room_in_words(generation["kind"], generation["capacity"], generation["error_rate"])
        yield "", f"of {generation['bytes']:,} bytes with {room}"
    if state := answer.state:
        since = f" since {state['fenced_at']}" if state["fenced_at"] else ""
        status = f"{state['status']}{since}: {state['reason']}" if state["reason"] else state["status"]
        yield "state row", f"version {state['version']}, {status}"
        yield from (("", f"{name} {state[name]}") for name in ("active", "standby", "building") if state[name])
        yield "", f"{counted(state['rows'])} at the last build, published {state['published_at'] or 'never'}"
        if state["identity"] != answer.identity:
            yield "", f"its store is {state['identity']}"
    if answer.fault:
        yield "fault", answer.fault
    yield "lease", f"{answer.lease_seconds:.3f} s left"
    yield "timings", f"the verdict took {answer.first_us:,.0f} us, and {answer.again_us:,.0f} us once more"
