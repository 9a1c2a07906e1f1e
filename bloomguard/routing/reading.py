"""Reads an ID out of a path, as a pattern captures and converts it: a first look, before Django resolves anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter

from .patterns import Pattern

#: What a path that is not the route's has in place of an ID.
NO_ID: Any = object()


def reader(pattern: Pattern, names: tuple[str, ...]) -> Callable[[str], Any]:
    """``read(path)``: what ``pattern`` captures as ``names``, one value or a tuple for several, or :data:`NO_ID`."""
    expression = pattern.expression
    if expression is None:
        return lambda path: pick(pattern.match(path), names)
    if (between := Between.texts(pattern, names)) is not None:
        return between.reader()
    match, index, converters = expression.match, expression.groupindex, _converters(pattern)
    groups = [(index[name], converters[name].to_python) for name in names]

    def read(path: str) -> Any:
        found = match(path)
        if found is None:
            return NO_ID
        try:
            values = tuple([convert(found[group]) for group, convert in groups])
        except ValueError:
            return NO_ID
        return values[0] if len(values) == 1 else values

    return read


def pick(captured: dict[str, Any] | None, names: tuple[str, ...]) -> Any:
    """The ID among captured kwargs: one value, or a tuple for several; :data:`NO_ID` where one is left out."""
    if captured is None:
        return NO_ID
    try:
        values = tuple([captured[name] for name in names])
    except KeyError:  # an optional group of a regular expression
        return NO_ID
    return values[0] if len(values) == 1 else values


class Between(NamedTuple):
    """The usual pattern: one ID between two texts. An expression would cost more than all the rest."""

    before: str
    after: str
    convert: Callable[[str], Any]

    @classmethod
    def texts(cls, pattern: Pattern, names: tuple[str, ...]) -> Between | None:
        """What stands around the one ID of ``pattern``; ``None`` if it is of another kind."""
        before, _, after = pattern.text.partition("<")
        after = after.partition(">")[2]
        if pattern.expression is None or len(names) != 1 or "<" in after:
            return None
        convert = _CONVERT.get(type(_converters(pattern)[names[0]]))
        return None if convert is None else cls(before, after, convert)

    def reader(self) -> Callable[[str], Any]:
        """``read(path)``, as :func:`reader` makes it."""
        before, after, convert = self
        head, body, tail = slice(len(before)), self.body, self.tail

        def read(path: str) -> Any:
            if path[head] != before or path[tail] != after:
                return NO_ID
            try:
                return convert(path[body])
            except ValueError:
                return NO_ID

        return read

    @property
    def body(self) -> slice:
        """Where in a path the ID is."""
        return slice(len(self.before), -len(self.after) or None)

    @property
    def tail(self) -> slice:
        """Where in a path :attr:`after` is."""
        return slice(-len(self.after), None) if self.after else slice(0)


def _segment(text: str) -> str:
    """``text`` between two slashes; raises :class:`ValueError` if it is empty or has one in it."""
    if not text or "/" in text:
        raise ValueError("no segment of a path")
    return text


#: What Django's converters make of a text, without a look at its form: whoever relies on that asks Django.
_CONVERT: dict[type, Callable[[str], Any]] = {
    IntConverter: int,
    SlugConverter: _segment,
    StringConverter: _segment,
    UUIDConverter: UUID,
}


def _converters(pattern: Pattern) -> dict[str, Any]:
    return {name: converter for step in pattern.steps for name, converter in step.converters.items()}
