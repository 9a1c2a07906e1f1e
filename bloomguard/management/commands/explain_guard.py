"""``manage.py explain_guard PATH``: show which guard answers for a path, its verdict, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...exceptions import ConfigurationError
from ...routes.explain import Explanation, GuardAnswer, explain
from ...verdicts import in_words


class Command(BaseCommand):
    """``manage.py explain_guard``."""

    help = "Show what a guard does with one path, and why. The output contains the key: do not publish it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", help="a path such as /cities/7/, or a whole URL")
        parser.add_argument("--method", default="GET", type=str.upper, help="the request method (default: GET)")
        parser.add_argument("--urlconf", help="the URLconf (default: ROOT_URLCONF)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        given = options["path"]
        # Two slashes at the start of a path would be those before a host.
        path = unquote(urlsplit(f"http://host{given}" if given.startswith("/") else given).path)
        if not path.startswith("/"):
            raise CommandError(f"{given!r} is not a path: it must begin with a slash, as in /cities/7/")
        try:
            found = explain(path, options["method"], options["urlconf"])
        except (ImportError, ImproperlyConfigured) as error:
            raise CommandError(f"there is no URLconf {options['urlconf']!r}: {error}") from error
        except ConfigurationError as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(asdict(found), default=str))
            return
        for title, text in _route(found):
            self.stdout.write(f"{title:<11} {text}")
        for answer in found.guards:
            self.stdout.write("")
            for title, text in _guard(answer):
                self.stdout.write(f"{title:<11} {text}")


def _route(found: Explanation) -> list[tuple[str, str]]:
    lines = [("request", f"{found.method} {found.path}")]
    if found.pattern:
        lines.append(("route", f"{found.pattern}{f', named {found.name}' if found.name else ''}"))
        lines.append(("", f"Django takes {found.resolve_us:,.0f} us to find it"))
    if found.unguarded:
        lines.append(("guard", f"none: {found.unguarded}"))
    return lines


def _guard(answer: GuardAnswer) -> list[tuple[str, str]]:
    lines = [
        ("guard", f"{answer.guard}, of {answer.model} by {answer.lookup}"),
        ("key", f"{answer.key or 'none'}, of {answer.value or 'nothing in the path'}"),
        ("verdict", f"{in_words(answer.verdict, answer.reason)}: {answer.meaning}"),
        ("outcome", answer.outcome),
        ("store", ", ".join(filter(None, [answer.store, answer.backend]))),
    ]
    if identity := answer.identity:
        lines.append(("", f"identity {identity}"))
    if generation := answer.generation:
        lines.append(("generation", f"{generation['name']}, a {generation['kind']} filter"))
        room, rate = f"room for {generation['capacity']:,}", f"an error rate of {generation['error_rate']:g}"
        lines.append(("", f"of {generation['bytes']:,} bytes with {room} at {rate}"))
    if state := answer.state:
        status = f"{state['status']}: {state['reason']}" if state["reason"] else state["status"]
        lines.append(("state row", f"version {state['version']}, {status}"))
        lines += [("", f"{name} {state[name]}") for name in ("active", "standby", "building") if state[name]]
        lines.append(("", f"{state['rows']:,} rows at the last build, published {state['published_at'] or 'never'}"))
        if state["identity"] != answer.identity:
            lines.append(("", f"its store is {state['identity']}"))
    if answer.fault:
        lines.append(("fault", answer.fault))
    lines.append(("lease", f"{answer.lease_seconds:.3f} s left"))
    lines.append(("timings", f"the verdict took {answer.first_us:,.0f} us, and {answer.again_us:,.0f} us once more"))
    return lines
