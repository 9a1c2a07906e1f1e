"""What has to hold for the rows of guarded models, whichever app writes them and whoever looks them up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.db.models import ForeignKey, IntegerField, UUIDField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.generic import DetailView

from bloomguard import Guard, Verdict, guarded_lookups, registry
from bloomguard.models import GuardState
from bloomguard.state.row import ARMED, FENCED
from bloomguard.testing import assert_blocked, assert_passes


class Page(DetailView):
    """One row, as text."""

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return HttpResponse(f"row {self.object.pk}")


@contextmanager
def sent(*words: str, table: str = "") -> Iterator[list[str]]:
    """The statements on ``table`` that begin with one of ``words`` and reach a database."""
    found: list[str] = []

    def note(execute: Any, sql: Any, *rest: Any) -> Any:
        text = str(sql).strip()
        if text.upper().startswith(words) and (not table or f'"{table}"' in text):
            found.append(text)
        return execute(sql, *rest)

    with ExitStack() as stack:
        for connection in map(connections.__getitem__, connections):
            stack.enter_context(connection.execute_wrapper(note))
        yield found


def keys_of(guard: Guard) -> set[Any]:
    """The keys of the rows that exist for the public; none equals NULL."""
    rows = guard._meta.rows().order_by().values_list(*guard._meta.attnames)
    return {row if len(row) > 1 else row[0] for row in rows if None not in row}


def absent_keys(guard: Guard) -> list[Any]:
    """A hundred keys that no row has."""

    def value(field: Any, number: int) -> Any:
        field = field.target_field if isinstance(field, ForeignKey) else field
        if isinstance(field, UUIDField):
            return UUID(int=number)
        return number if isinstance(field, IntegerField) else f"absent-{number}"

    keys = (tuple(value(field, 900_000 + n) for field in guard._meta.fields) for n in range(100))
    return [key if len(key) > 1 else key[0] for key in keys]


def filters(guard: Guard, key: Any) -> dict[str, Any]:
    """A key as the arguments of a query."""
    values = key if len(guard._meta.attnames) > 1 else (key,)
    return dict(zip(guard._meta.attnames, values, strict=True))


@dataclass
class Rules:
    """The guards that ``module`` registers, and what holds for them."""

    module: ModuleType
    client: Any
    clock: Any
    build: Callable[..., Any]

    @property
    def guards(self) -> list[Guard]:
        return [guard for guard in registry if type(guard).__module__ == self.module.__name__]

    def rebuild(self) -> None:
        """Each guard has a filter of its rows, and answers."""
        for guard in self.guards:
            self.build(guard.name)
        self.clock.now += 1
        self.hold()

    @contextmanager
    def follow(self, *tables: str, fenced: tuple[str, ...] = ()) -> Iterator[None]:
        """What the block writes, into each of ``tables``, the filters have; and it fences those alone.

        A guard with a cuckoo filter has forgotten the rows that are gone, and after the next rebuild all is as ever.
        """
        before = {guard: keys_of(guard) for guard in self.guards}
        with sent("INSERT", "UPDATE", "DELETE") as statements:
            yield
        for table in tables:
            assert any(f'"{table}"' in statement for statement in statements), f"nothing was written to {table}"

        self.clock.now += 1
        self.hold(fenced=fenced)
        for guard, keys in before.items():
            if guard._meta.discards and guard.name not in fenced:
                gone = keys - keys_of(guard)
                assert {guard.verdict(key) for key in gone} <= {Verdict.ABSENT}, (guard, gone)
        self.rebuild()

    def hold(self, *, fenced: tuple[str, ...] = ()) -> None:
        """No row is denied. Whatever is absent is, unless the guard is one of ``fenced``."""
        for guard in self.guards:
            state = GuardState.objects.get(name=guard.name)
            assert state.status == (FENCED if guard.name in fenced else ARMED), (guard, state.reason)
            keys = keys_of(guard)
            denied = [key for key in keys if guard.verdict(key) == Verdict.ABSENT]
            assert denied == [], guard
            if guard.name not in fenced:
                assert {guard.verdict(key) for key in keys} <= {Verdict.MAYBE}, guard
                absent = [guard.verdict(key) for key in absent_keys(guard)].count(Verdict.ABSENT)
                assert absent >= 95, (guard, absent)  # at 0.1% of false positives

    def missing(self, guard: Guard) -> Any:
        """A key that no row has, and that is no false positive."""
        return next(key for key in absent_keys(guard) if guard.verdict(key) == Verdict.ABSENT)

    def look_up(self, name: str, rows: Any) -> None:
        """``get`` and ``get_object_or_404`` on ``rows`` find what exists, and send nothing for what does not."""
        guard = registry[name]
        keys = keys_of(guard)
        assert keys
        with guarded_lookups():
            for key in keys:
                row = rows.get(**filters(guard, key))
                assert get_object_or_404(rows, **filters(guard, key)).pk == row.pk
            absent = filters(guard, self.missing(guard))
            with sent("SELECT", table=guard.model._meta.db_table) as statements:
                with pytest.raises(rows.model.DoesNotExist):
                    rows.get(**absent)
                with pytest.raises(Http404):
                    get_object_or_404(rows, **absent)
            assert statements == []

    def visit(self, name: str, path: str, status: int = 200) -> None:
        """The page of each row is shown; that of an absent one is the site's 404, with no statement at all."""
        guard = registry[name]
        keys = keys_of(guard)
        assert keys
        for key in keys:
            assert assert_passes(self.client, path % key).status_code == status
        assert_blocked(self.client, path % self.missing(guard))
