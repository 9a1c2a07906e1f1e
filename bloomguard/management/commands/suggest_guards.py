"""``manage.py suggest_guards``: print a ``guards.py`` for the project's models, with what each guard would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...exceptions import ConfigurationError
from ...guards import registry
from ...guards.guard import kebab
from ...routes.suggestions import Declined, Suggestion, suggest
from .. import size_in_words

_PLACES = {
    "door": "at the door, if the site has one, else at the route",
    "route": "at the route",
    "lookup": "at the lookup",
}


class Command(BaseCommand):
    """``manage.py suggest_guards``."""

    help = (
        "Print a guards.py with a guard for each model that views look up by one row. It is Python: redirect it to a "
        "file and read it before you keep it. Counts the rows of the tables."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("labels", nargs="*", metavar="app", help="labels of apps (default: all)")
        parser.add_argument("--urlconf", help="the URLconf (default: ROOT_URLCONF)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            suggestions, declined = suggest(options["labels"], options["urlconf"])
        except (LookupError, ConfigurationError) as error:
            raise CommandError(str(error)) from error
        except ImportError as error:
            raise CommandError(f"there is no URLconf {options['urlconf']!r}: {error}") from error
        code = "\n".join(_module(suggestions, declined))
        if options["json"]:
            guards = [asdict(each) for each in suggestions]
            found = {"guards": guards, "not_suggested": [asdict(each) for each in declined], "code": code}
            self.stdout.write(json.dumps(found))
            return
        self.stdout.write(code)


def _module(suggestions: Sequence[Suggestion], declined: Sequence[Declined]) -> Iterator[str]:
    """Yield the lines of ``guards.py``."""
    yield '"""Guards suggested by ``manage.py suggest_guards``. Read them, and remove what you do not need."""'
    if suggestions:
        yield from ("", "from bloomguard import Guard, register", "")
        models = _class_names(suggestions)
        imports: dict[str, set[str]] = {}
        for each in suggestions:
            own, given = each.model.rpartition(".")[2], models[each.model]
            imports.setdefault(each.module, set()).add(own if own == given else f"{own} as {given}")
        yield from (f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imports.items()))
        taken = {guard.name for guard in registry}
        for each in suggestions:
            yield from ("", "")
            yield from _guard(each, models[each.model], taken)
    if declined:
        yield from ("", "", "# No guard is suggested for:")
        yield from (f"# {each.model}: {each.reason}" for each in declined)


def _class_names(suggestions: Sequence[Suggestion]) -> dict[str, str]:
    """Map the label of each model to a name that no other one has."""
    names: dict[str, str] = {}
    for each in suggestions:
        app, _, own = each.model.rpartition(".")
        if own in names.values() and each.model not in names:
            own = app.title().replace("_", "") + own
        names.setdefault(each.model, own)
    return names


def _guard(each: Suggestion, model: str, names: set[str]) -> Iterator[str]:
    if each.rows is None:
        yield "# The table cannot be read yet: run migrate."
    else:
        yield (
            f"# About {each.rows:,} rows: a {each.kind} filter of {size_in_words(each.bytes)}, built in about "
            f"{each.seconds:.0f} s."
        )
    for place, texts in each.answers.items():
        yield f"# It answers {_PLACES[place]}: {', '.join(texts)}"
    if each.hides:
        yield f"# If visitors do not see all rows, set alive, by {' or '.join(each.hides)}: see docs/soft-delete.md"
    by = "" if each.lookup == ("pk",) else "By" + "And".join(name.title().replace("_", "") for name in each.lookup)
    name = kebab(f"{model}{by}Guard")
    yield f"@register({model})"
    yield f"class {model}{by}Guard(Guard):"
    lines = []
    if by:
        lines.append(f"lookup = {each.lookup[0]!r}" if len(each.lookup) == 1 else f"lookup = {each.lookup!r}")
    if each.routes:
        lines.append(f"routes = {each.routes!r}")
    if name in names:
        name = f"{name}-2"
        lines.append(f"name = {name!r}")
    names.add(name)
    yield from (f"    {line}".replace("'", '"') for line in lines or ["pass"])
