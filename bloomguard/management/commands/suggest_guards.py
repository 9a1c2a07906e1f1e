"""``manage.py suggest_guards``: print a ``guards.py`` for the project's models, with what each guard would cost.

A model gets a guard if a view shows by which field it looks up one row: a generic view by its attributes, any other by
the models that its code names and the kwargs of its URL pattern. What is suggested is safe to declare in any case, as a
guard answers only queries by its own fields; where the evidence is weak, it may just be of no use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import Model

from ...exceptions import ConfigurationError
from ...guards import AUTO, Guard, registry
from ...guards.fields import value_field
from ...guards.guard import kebab
from ...lookups.query import concrete
from ...rebuild.plan import layout_of
from ...rebuild.refusals import database_refusals, declaration_refusals
from ...rebuild.source import Source
from ...routes.discovery import column_of, models_named_by
from ...routes.openness import is_admin, layers
from ...routes.patterns import Pattern, patterns
from ...routes.table import guarded_routes
from .. import UrlsCommand, size_in_words

_PLACES = {
    "door": "at the door, if the site has one, else at the route",
    "route": "at the route",
    "lookup": "at the lookup",
}
#: A rebuild waits twice for two leases. Seconds per row by the benchmark of rebuilds, for keys that the database
#: aggregates (integers, UUIDs), and for others.
_WAIT_SECONDS, _FAST, _SLOW = 4.0, 0.6e-6, 4e-6
#: Fields that usually hide rows from the public.
_HIDING = ("deleted", "deleted_at", "is_deleted", "is_removed", "removed_at", "archived_at", "is_archived")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A guard: ``lookup`` has the names of its fields, ``routes`` is empty or ``"auto"``.

    If the table cannot be read, ``rows`` is ``None``, ``bytes`` and ``seconds`` are 0, and ``error`` is the database's.
    ``answers`` maps each place where the guard would answer (``door``, ``route``, ``lookup``) to URL patterns.
    ``hides`` names fields that may belong in ``alive``.
    """

    model: str
    module: str
    lookup: tuple[str, ...]
    routes: str
    rows: int | None = None
    kind: str = ""
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    answers: dict[str, list[str]]
    hides: list[str]


#: A model, and why no guard is suggested for it, or for one of its lookups.
Declined = tuple[str, str]


class Command(UrlsCommand):
    """``manage.py suggest_guards``."""

    help = (
        "Print a guards.py with a guard for each model that views look up by one row. It is Python: redirect it to a "
        "file and read it before you keep it. Counts the rows of the tables."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("labels", nargs="*", metavar="app", help="labels of apps (default: all)")
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        try:
            suggestions, declined = suggest(options["labels"], options["urlconf"])
        except LookupError as error:
            raise CommandError(str(error)) from error
        code = "\n".join(_module(suggestions, declined))
        if options["json"]:
            others = [{"model": model, "reason": reason} for model, reason in declined]
            code = json.dumps({"guards": list(map(asdict, suggestions)), "not_suggested": others, "code": code})
        self.stdout.write(code)


def suggest(labels: Sequence[str] = (), urlconf: Any = None) -> tuple[list[Suggestion], list[Declined]]:
    """Return guards for the models of the apps ``labels`` (default: all), and the models that get none.

    Counts rows and reads the catalogue of the database. Raises :class:`LookupError` for an unknown app, and
    :class:`ConfigurationError` for a mistake in the settings of the default store.
    """
    wanted = [apps.get_app_config(label) for label in labels] or apps.get_app_configs()
    models = [model for config in wanted for model in config.get_models()]
    seen: dict[type[Model], dict[tuple[str, ...], list[Pattern]]] = {
        model: {}
        for model in models
        if not (model._meta.proxy or model._meta.swapped or model._meta.app_label == "bloomguard")
    }
    for pattern in patterns(urlconf):
        if pattern.takes_id and not is_admin(pattern.callback):
            for model, lookup in _looked_up(pattern):
                if model in seen:
                    seen[model].setdefault(lookup, []).append(pattern)
    suggestions, declined = [], []
    for model, lookups in seen.items():
        if not lookups and not model.__module__.startswith("django."):
            declined.append((model._meta.label, "no URL pattern shows by which field a view looks up one row"))
        for lookup, shown in lookups.items():
            guard = _made(model, lookup)
            if reason := _why_not(guard):
                declined.append((model._meta.label, reason))
            else:
                suggestions.append(_suggestion(guard, lookup, shown, urlconf))
    return suggestions, declined


def _made(model: type[Model], lookup: tuple[str, ...]) -> Guard:
    attributes = {"name": "suggested", "lookup": lookup, "routes": AUTO}
    guard: Guard = type("SuggestedGuard", (Guard,), attributes)(model)
    return guard


# -- what views look up


def _looked_up(pattern: Pattern) -> Iterator[tuple[type[Model], tuple[str, ...]]]:
    """Yield the models of whose rows the view seems to look up one, and by which fields."""
    shown = pattern.shown
    if shown is None:
        yield from _named_in_code(pattern)
        return
    model = concrete(shown.model)
    for name in shown.looked_up:
        if column_of(model, name) is not None:
            yield model, ("pk" if column_of(model, name) is model._meta.pk else name,)


def _named_in_code(pattern: Pattern) -> Iterator[tuple[type[Model], tuple[str, ...]]]:
    *_, view = layers(pattern.callback)
    models = models_named_by(view)
    called = f"{pattern.view_name} {getattr(view, '__name__', '')}".lower()
    for model in models:
        is_meant = len(models) == 1 or str(model._meta.model_name) in called
        lookup = _by_kwargs(model, pattern.captured, is_meant=is_meant)
        if lookup:
            yield model, lookup


def _by_kwargs(model: type[Model], captured: Iterable[str], *, is_meant: bool) -> tuple[str, ...]:
    """Return the fields by which the kwargs find one row: the primary key, a unique field, or several; else nothing."""
    captured, meta = set(captured), model._meta
    if captured & {f"{meta.model_name}_pk", f"{meta.model_name}_id"}:
        return ("pk",)
    if not is_meant:
        return ()
    if captured & {"pk", meta.pk.name, getattr(meta.pk, "attname", "pk")}:
        return ("pk",)
    unique = [field.name for field in meta.concrete_fields if field.unique and field.name in captured]
    if unique:
        return (unique[0],)
    together = [*meta.unique_together, *(constraint.fields for constraint in meta.total_unique_constraints)]
    return next((tuple(names) for names in together if captured.issuperset(names)), ())


# -- whether a guard may be declared, and what it costs


def _why_not(guard: Guard) -> str:
    """Return why the guard would be refused by a check or a rebuild, or is there already; empty if neither."""
    by = " and ".join(guard.lookup)
    try:
        if guard._meta.keys.own_field:
            return f"{guard._meta.keys.own_field!r} converts values with the project's own code"
        for field in guard._meta.fields:
            if collation := getattr(value_field(field), "db_collation", None):
                return f"{field.name!r} has the collation {collation!r}: write a guard with normalize() by hand"
        for other in registry:
            if other.model is guard.model and other._meta.fields == guard._meta.fields:
                return f"the guard {other.name!r} guards it by {by}"
        connection = Source(guard).connection
    except ConfigurationError as error:
        return str(error)
    reasons = list(declaration_refusals(guard))
    with suppress(DatabaseError):  # shown with the costs; a rebuild asks again
        reasons += database_refusals(guard, connection)
    return f"by {by}: {reasons[0].reason}" if reasons else ""


def _suggestion(guard: Guard, lookup: tuple[str, ...], shown: list[Pattern], urlconf: Any) -> Suggestion:
    model = guard.model
    answers: dict[str, list[str]] = {}
    routes = [route for route in guarded_routes(guard, urlconf) if not route.closed]
    early = {route.pattern.text: "route" if route.not_at_door else "door" for route in routes}
    for text in dict.fromkeys([*early, *(pattern.text for pattern in shown)]):
        answers.setdefault(early.get(text, "lookup"), []).append(text)
    return Suggestion(
        model=model._meta.label,
        module=model.__module__,
        lookup=lookup,
        routes=AUTO if early else "",
        answers=answers,
        hides=[field.name for field in model._meta.concrete_fields if field.name in _HIDING],
        **_costs(guard),
    )


def _costs(guard: Guard) -> dict[str, Any]:
    try:
        summary = Source(guard).summary()
    except DatabaseError as error:
        return {"error": str(error)}
    layout = layout_of(guard, summary)
    each = _FAST if guard._meta.keys.kinds in (("integer",), ("uuid",)) else _SLOW
    seconds = round(_WAIT_SECONDS + summary.count * each, 1)
    return {"rows": summary.count, "kind": layout.kind, "bytes": layout.total_bytes, "seconds": seconds}


# -- guards.py


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
        yield from (f"# {model}: {reason}" for model, reason in declined)
    elif not suggestions:
        yield "# No view of the URLconf looks up one row of these models."


def _class_names(suggestions: Sequence[Suggestion]) -> dict[str, str]:
    """Map the label of each model to a name that nothing else in the file has."""
    names: dict[str, str] = {}
    for each in suggestions:
        app, _, own = each.model.rpartition(".")
        if own in {*names.values(), "Guard", "register"} and each.model not in names:
            own = app.title().replace("_", "") + own
        names.setdefault(each.model, own)
    return names


def _guard(each: Suggestion, model: str, names: set[str]) -> Iterator[str]:
    if each.rows is None:
        yield f"# The table cannot be read: {' '.join(each.error.split())}"
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
