"""What the options of a guard mean for its model: the fields of the key, the tables, the rows."""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import FieldDoesNotExist
from django.db import DatabaseError, InterfaceError, connections, models, router
from django.db.models.expressions import Col
from django.db.models.lookups import IntegerFieldExact
from django.db.models.sql import Query

from ..exceptions import ConfigurationError
from ..filters.layout import KINDS
from .conditions import as_text, fields_of, refusal_reasons
from .fields import form_of, is_djangos, is_own_sql, own_methods, parts_of, value_field
from .keys import OF_THE_TEXT, KeyMaker, Scoped, plain, scope_of
from .places import Place
from .scopes import DATABASE, Scopes

if TYPE_CHECKING:
    from .guard import Guard


class GuardMeta:
    """``guard._meta``, as ``Model._meta`` of a model.

    ``normalize`` is the method of the guard, ``None`` if the project has not overridden it.
    """

    def __init__(self, guard: Guard, normalize: Callable[[str], str] | None) -> None:
        self._guard = guard
        self._normalize = normalize
        #: Whether the project has overridden ``normalize``.
        self.normalizes = normalize is not None

    @cached_property
    def fields(self) -> tuple[models.Field[Any, Any], ...]:
        """The model fields of ``lookup``; raises :class:`ConfigurationError` with a missing field, or a mistake."""
        for mistake in self._guard._mistakes:
            if mistake.decides_keys:
                raise ConfigurationError(mistake.reason)
        lookup, options = self._guard.lookup, self._guard.model._meta
        found: list[models.Field[Any, Any]] = []
        for name in (lookup,) if isinstance(lookup, str) else tuple(lookup):
            try:
                field = options.pk if name == "pk" else options.get_field(name)
            except FieldDoesNotExist as error:
                raise ConfigurationError(f"{options.label} has no field {name!r}") from error
            if isinstance(field, models.CompositePrimaryKey):
                found += field.fields  # type: ignore[arg-type]
            elif isinstance(field, models.Field) and field.concrete:
                found.append(field)
            else:
                raise ConfigurationError(f"{options.label}.{name} is not a column")
        if not found:
            raise ConfigurationError(f"lookup is {lookup!r}; it has to name at least one field")
        return tuple(found)

    @cached_property
    def attnames(self) -> tuple[str, ...]:
        """The attribute names of the lookup's fields, such as ``city_id`` for a foreign key."""
        return tuple(field.attname for field in self.fields)

    @cached_property
    def ignores_overflow(self) -> bool:
        """Whether the key is one integer, for which Django sends no query if it is out of the column's range."""
        return len(self.fields) == 1 and self.fields[0].get_lookup("exact") is IntegerFieldExact

    @cached_property
    def keys(self) -> KeyMaker:
        """The maker of the guard's keys; raises :class:`ConfigurationError` if a field cannot be a key."""
        try:
            return KeyMaker(self.fields, self._normalize, self.scopes.current if self._guard.scope else None)
        except TypeError as error:
            raise ConfigurationError(str(error)) from error

    def key_written(self, using: str, *, by_orm: bool = True) -> Callable[[Any], bytes]:
        """Return the function that makes the keys of rows that a statement on ``using`` has just written.

        ``by_orm``: not raw SQL. With scopes, may query, and raises :class:`NoScope` if theirs is not certain.
        """
        if self._guard.scope is None:
            return self.keys.key
        scope = self.scopes.of_rows(using, by_orm=by_orm)
        return lambda value: self.keys.key(Scoped(scope, value))

    @property
    def tables(self) -> set[str]:
        """The guard's table, parent tables with a column of the key or of ``alive``, and the tables between them."""
        options = self._guard.model._meta
        try:
            columns = [*self.fields, *self.alive_fields]
        except Exception:
            # A system check reports the mistake. Until it is corrected, no keys can be made, so writes fence the guard.
            # It must not stop the writes of other tables.
            columns = [model._meta.pk for model in with_parents(self._guard.model)]
        models = {field.model for field in columns}
        for model in list(models):
            models.update(options.get_base_chain(model) or ())
        return {options.db_table, *(model._meta.db_table for model in models)}

    @property
    def alive_fields(self) -> set[Any]:
        """The model fields in ``alive``, on either side of a comparison; raises :class:`FieldDoesNotExist`."""
        return fields_of(self._guard.model, self._guard.alive)

    @property
    def definition(self) -> str:
        """What a key of this guard means, as text: a filter that was built for another text is never queried."""
        guard = self._guard
        self.keys  # noqa: B018  # raises for fields that cannot be a key
        columns = ",".join(f"{field.column}:{form_of(field)}" for field in self.fields)
        normalize = type(guard).normalize.__qualname__
        alive = as_text(guard.alive)
        # Discarding a key is only safe if every process counts its adds.
        counted = "|counted" if self.discards else ""
        # No filter is built for such a condition; one that another release has built must not be queried.
        uncertain = "|uncertain" if next(refusal_reasons(guard.model, guard.alive), "") else ""
        scope = f"|scope={guard.scope}" if guard.scope else ""
        # A version that follows signals alone misses writes that another one would add.
        signals = "|signals" if guard.sync == "signals" else ""
        name = f"{guard.name}|{guard.model._meta.db_table}({columns})"
        return f"{name}|{alive}|{normalize}{counted}{uncertain}{scope}{signals}{self._watched()}{self._forms}"

    @cached_property
    def _forms(self) -> str:
        """What ``normalize`` and the fields' own ``to_python`` make of some texts; empty if Django's code makes all."""
        own: list[Callable[[str], Any]] = [
            field.to_python for field in map(value_field, self.fields) if own_methods(field, ("to_python",))
        ]
        if self._normalize is not None:
            own.append(self._normalize)
        return f"|forms={_fingerprint(own)}" if own else ""

    def converts_again(self, field: models.Field[Any, Any]) -> bool:
        """Return whether a value has another key after ``to_python``, as its row has: one that escapes HTML, say."""
        for text in _SAMPLES if own_methods(field, ("to_python",)) else ():
            with suppress(Exception):  # one of them has no key
                encode = self.keys.encoders[self.fields.index(field)]
                if encode(text) != encode(value_field(field).to_python(text)):
                    return True
        return False

    @property
    def watched_fields(self) -> set[Any]:
        """The fields, in all tables, whose change can give a row a new key.

        They are those of the key, of ``alive``, both ends of the links between parents, and those that generated ones
        are computed from; and the primary key, as a scan that goes by it misses a row that moves to where it has been.
        All fields if the sources of one cannot be found out.
        """
        model = self._guard.model
        try:
            due: list[Any] = [*self.fields, *model._meta.pk_fields, *self.alive_fields]
            if len(self.tables) > 1:
                links: Iterable[Any] = (link for one in with_parents(model) for link in one._meta.parents.values())
                due += [end for link in links if link is not None for end in (link, link.target_field)]
            return _columns_of(due)
        except Exception:  # a system check reports the missing field
            return {field for each in with_parents(model) for field in each._meta.concrete_fields}

    def _watched(self) -> str:
        """Return, as text, the columns that are watched, and what an ``alive`` compares with them depends on.

        Two versions of the project may compute a generated column from different ones, read different columns by one
        field, or compare a column as another type. One would miss a write, or ask for rows that the other has left out.
        """
        alive, columns = set[Any](), set[str]()
        with suppress(FieldDoesNotExist):  # a system check reports it
            alive = self.alive_fields
        for field in self.watched_fields:
            column = f"{field.model._meta.db_table}.{field.column}"
            columns.add(f"{field.name}={column}:{_class_of(field)}" if field in alive else column)
        return f"|watched={','.join(sorted(columns))}"

    @property
    def definition_hash(self) -> str:
        """The :attr:`definition` as the state row has it; empty if it has a mistake, so that it cannot be known."""
        try:
            return hashlib.sha256(self.definition.encode()).hexdigest()[:32]
        except Exception:  # a system check reports it
            return ""

    @property
    def discards(self) -> bool:
        """Whether the keys of rows that are deleted, or no longer alive, are discarded at once."""
        kind = KINDS.get(self._guard.filter)
        return kind is not None and kind.supports_discard and self._guard.sync == "statements"

    @property
    def is_unique(self) -> bool:
        """Whether no two rows can have one key, by what the model declares."""
        options = self._guard.model._meta
        unique = [{field.name} for field in self.fields if field.unique]
        unique += [set(names) for names in options.unique_together]
        unique += [set(constraint.fields) for constraint in options.total_unique_constraints]
        unique.append({field.name for field in options.pk_fields})
        looked_up = {field.name for field in self.fields}
        return not self.normalizes and any(names <= looked_up for names in unique)

    @property
    def database(self) -> str:
        """The alias of the database that the model's writes go to; the filter holds the keys of its rows."""
        return router.db_for_write(self._guard.model)

    def database_of(self, key: bytes) -> str:
        """Return the alias of the database that has the row with ``key``, if there is one."""
        return scope_of(key) if self._guard.scope == DATABASE else self.place.home

    @cached_property
    def place(self) -> Place:
        """Where the guard's table is."""
        return Place(self._guard) if self._guard.scope is None else self.scopes

    @cached_property
    def scopes(self) -> Scopes:
        """Where the guard's tables are, if it has a ``scope``."""
        return Scopes(self._guard)

    def is_exact(self, value: Any) -> bool:
        """Return whether the database treats all values with the key of ``value`` as equal: a query for one is for all.

        An overridden ``normalize`` or a custom field may give one key to several; so do integers of more than 64 bits.
        """
        if not self._has_djangos_keys:
            return False
        values = [field.to_python(each) for field, each in zip(self.fields, self.conditions(value).values())]
        return not any(isinstance(each, int) and abs(each) >> 63 for each in values)

    @cached_property
    def _has_djangos_keys(self) -> bool:
        return not self.normalizes and all(map(is_djangos, self.fields))

    def rows(self) -> models.QuerySet[Any]:
        """Return the rows that the public can see, unordered."""
        # Do not use the model's managers: one that hides rows would keep them out of the filter.
        return models.QuerySet(self._guard.model).filter(self._guard.alive)

    def conditions(self, value: Any) -> dict[str, Any]:
        """Return ``value``, or the values of several fields, as keyword arguments for ``filter``."""
        value = plain(value)
        if len(self.fields) == 1:
            return {self.attnames[0]: value}
        if isinstance(value, Mapping):
            return {field.attname: value[field.name] for field in self.fields}
        return dict(zip(self.attnames, value, strict=True))


def with_parents(model: type[models.Model]) -> Iterable[type[models.Model]]:
    """Return the model and all its parents."""
    return (model, *model._meta.all_parents)


def _columns_of(due: list[Any]) -> set[Any]:
    """Return the fields ``due``, and those that they are computed from; raises :class:`FieldDoesNotExist`."""
    found: set[Any] = set()
    while due:
        field = due.pop()
        if field in found:
            continue
        if getattr(field, "generated", False):
            due += _generated_from(field)
        if not getattr(field, "column", None):
            raise FieldDoesNotExist(field.name)
        found.add(field)
    return found


def _generated_from(generated: Any) -> set[Any]:
    """Return the fields in a generated column's expression; raises :class:`FieldDoesNotExist` if its SQL is not known.

    A function or a template of the project's own may name columns in its text.
    """
    parts = list(parts_of(generated.expression.resolve_expression(Query(generated.model), allow_joins=False)))
    found = {part.target for part in parts if isinstance(part, Col)}
    if not found or any(map(is_own_sql, parts)):
        raise FieldDoesNotExist(generated.name)
    return found


def _class_of(field: Any) -> str:
    """Return, as text, what decides to which value a constant in ``alive`` is converted for the database.

    Most databases store no zone with a time. Nor does the constant have one without ``USE_TZ``.
    """
    found = value_field(field).get_internal_type()
    if found != "DateTimeField":
        return found
    if not settings.USE_TZ:
        return f"{found}@{settings.TIME_ZONE}"
    # Of all databases: a router, asked for the guard's own in the middle of a request, might take that for a write.
    zones = {connections.settings[alias].get("TIME_ZONE") or "UTC" for alias in connections}
    return f"{found}@{','.join(sorted(zones))}"


# Nobody can see from outside what a function of the project does. But most changes show in case, accents, spaces,
# punctuation, numbers and lengths. No character is one that a newer Unicode treats otherwise, so that two versions of
# Python agree.
_SAMPLES = (
    "", " ", "a", "A", " a ", "a  b", "a b", "a\tb\n", "Ab-Cd_eF", "aBc", "ab--cd", "-a-", "_a", "a.b", "a.", "a,b;c",
    "a/b", "a\\b", "a%20b", "a+b", "a&b=c", "a'b", '"a"', "<a>", "#a", "@a", "(a)", "a:b", "a~b", "a*b?", "\u00e1",
    "A\u0301",
    "\u00c5ngstr\u00f6m", "stra\u00dfe", "\u0130I\u0131i", "\uff21\uff11", "\ufb01x", "\u03a3\u03c2", "\u0401\u0436",
    "\u4e2d\u6587", "\u3000a", "\u200ba", "\xa0a", "\u2013a\u2019", "0", "7", "007", "-7", "+7", "7.0", "1,000", "1e3",
    "0x7", "a7", "7a", "+49 (30) 123-456", "978-3-16-148410-0", "User.Name+tag@Example.com", "https://www.Example.com/A/?b#c",
    "2024-02-29", "00000000-0000-4000-8000-00000000000A", "{0000000000004000800000000000000b}", "the-a", "a-2024",
    "0123456789" * 4, "abcdefghij" * 30,
)  # fmt: skip
#: Classes whose values have the same text in every process.
_PLAIN = (str, int, Decimal, uuid.UUID, datetime.date)
#: After these errors the function may work a moment later. After any other, it raises the same in every process.
_TEMPORARY = (OSError, DatabaseError, InterfaceError)


def _fingerprint(functions: Iterable[Callable[[str], Any]]) -> str:
    """Return, in 16 digits, what the functions return, or raise, for :data:`_SAMPLES`. Raises temporary errors."""
    found = hashlib.sha256()
    for function in functions:
        for text in _SAMPLES:
            try:
                made = function(text)
            except _TEMPORARY:
                raise
            except Exception as error:
                made = None if isinstance(error, OF_THE_TEXT) else error
            shown = str(made) if isinstance(made, _PLAIN) else ""
            found.update(f"{type(made).__name__}:{len(shown)}:{shown}".encode(errors="surrogatepass"))
    return found.hexdigest()[:16]
