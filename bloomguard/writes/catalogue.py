"""The catalogue: what a database does by itself when a table is written, so which effects follow from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .sql.statement import ANY_FIELD, ANYTHING, Effect
from .sql.tokens import bare

#: The verbs that write a row, which a BEFORE trigger may change.
ROW = frozenset({"insert", "update"})
WRITES = ROW | {"delete"}
#: Among the columns of an update, says that it sets them to NULL. No column has this name.
EMPTIED = ""


class Flow(NamedTuple):
    """Each of ``verbs`` on a table has ``effect``; if there are ``columns``, an update has to change one of them.

    If ``effect`` has no verb, the same verb is done to its table.
    """

    verbs: frozenset[str]
    effect: Effect
    columns: frozenset[str] | None = None
    because: str = ""
    #: Whether it writes other rows (trigger, rule, default, foreign key), not the same ones by a view or partition.
    is_active: bool = False


class Catalogue:
    """The flows of one database by table, the parents and views that show a table's rows, and what its functions do."""

    def __init__(self) -> None:
        self.flows: dict[str, list[Flow]] = {}
        self.shows: dict[str, list[tuple[str, bool]]] = {}
        self.views: set[str] = set()
        self.functions: dict[str, frozenset[Effect]] = {}
        #: Whether it has what each rule does; one that is locked may do anything, and is read again soon.
        self.is_complete = True
        #: Functions that are also called by ``row.name``.
        self.of_rows: set[str] = set()
        #: Each table and verb with a BEFORE trigger: it may store another row than the statement gives.
        self.rewritten: set[tuple[str, str]] = set()

    def follow(self, effects: Iterable[Effect]) -> frozenset[tuple[Effect, bool]]:
        """Return all effects that may follow from ``effects``, each with :attr:`Flow.is_active` of the way there."""
        done, left = set[tuple[Effect, bool]](), [(self.widened(effect), False) for effect in effects]
        found = set[tuple[Effect, bool]]()
        while left:
            each = left.pop()
            if each not in done:
                done.add(each)
                following = [(effect, each[1] or is_active) for effect, is_active in self._next(each[0])]
                found.update(following)
                left += following
        for is_active in (False, True):
            shown = self.shown(effect for effect, so in done if so is is_active)
            found.update((effect, is_active) for effect in shown)
        return frozenset(found)

    def calls(self, effect: Effect) -> bool:
        """Whether ``effect``, as a read has it, calls a function of the database's own, whatever that does."""
        if effect.verb == "field":
            return bool(self.of_rows) if effect == ANY_FIELD else effect.name in self.of_rows
        return effect.name in self.functions

    def _next(self, effect: Effect) -> Iterator[tuple[Effect, bool]]:
        if effect.verb == "field":
            for name in self.of_rows if effect == ANY_FIELD else self.of_rows & {effect.name}:
                yield Effect("call", name), True
        if effect.verb in ("call", "known", "run"):
            for done in self.functions.get(effect.name, (ANYTHING,) if effect.verb == "run" else ()):
                yield self.widened(done), True
        for flow in self.flows.get(effect.name, ()):
            if effect.verb not in flow.verbs:
                continue
            if flow.columns is None or effect.columns is None or flow.columns & effect.columns:
                following = flow.effect if flow.effect.verb else effect._replace(name=flow.effect.name)
                yield self.widened(following), flow.is_active

    def widened(self, effect: Effect) -> Effect:
        """Return ``effect``, of any column if a BEFORE trigger may change others than the statement names."""
        is_widened = effect.verb == "update" and (effect.name, "update") in self.rewritten
        return Effect("update", effect.name) if is_widened else effect

    def shown(self, effects: Iterable[Effect]) -> set[Effect]:
        """Return the same effects on the parents and views that show the rows of the written tables."""
        found, left = set[Effect](), [effect for effect in effects if effect.name in self.shows]
        while left:
            effect = left.pop()
            for name, is_view in self.shows.get(effect.name, ()):
                shown = Effect("insert", name) if is_view else effect._replace(name=name)
                if shown not in found:
                    found.add(shown)
                    left.append(shown)
        return found

    def add(self, table: str, verbs: frozenset[str], effect: Effect, **more: Any) -> None:
        """Record that ``verbs`` on ``table`` have ``effect``."""
        if effect.verb == "field" and effect != ANY_FIELD and effect.name not in self.of_rows:
            return  # nearly every trigger reads NEW.name
        self.flows.setdefault(bare(table), []).append(Flow(verbs, effect, **more))

    def add_trigger(
        self, table: str, verbs: frozenset[str], effects: Iterable[Effect], because: str, *, rewrites: bool = False
    ) -> None:
        """Record a trigger for ``verbs`` on ``table`` with ``effects``; ``rewrites``: it may change the row itself."""
        if rewrites:
            self.rewritten.update((bare(table), verb) for verb in verbs & ROW)
        for effect in effects:
            self.add(table, verbs, effect, because=because, is_active=True)

    def add_shown(self, table: str, by: str, *, is_view: bool) -> None:
        """Record that ``by``, a parent or a view, shows the rows of ``table``."""
        self.shows.setdefault(bare(table), []).append((bare(by), is_view))
        if is_view:
            self.views.add(bare(by))

    def add_view(self, table: str, view: str) -> None:
        """Record a view that shows ``table``, and passes each write to it."""
        self.add_shown(table, view, is_view=True)
        for verb in sorted(WRITES):
            self.add(view, frozenset({verb}), Effect(verb, bare(table)))
