"""Whether two statements in a row with the same WHERE certainly select the same rows.

Without ``RETURNING``, the rows that an UPDATE will change are selected before it, by its own WHERE. The second
evaluation selects other rows if the WHERE depends on anything but locked rows and constants: on chance, the time, or
rows of a subquery, which are read from a snapshot by the one statement and as they are now by the other. So each part
has to be in a list of those that are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Lookup, Transform, expressions, functions
from django.db.models.sql.where import NothingNode, WhereNode

#: Functions of Django whose result depends on their arguments alone.
_FUNCTIONS = """
    Abs ACos ASin ATan ATan2 Cast Ceil Chr Coalesce Collate Concat ConcatPair Cos Cot Degrees Exp Extract Floor Greatest
    JSONObject Least Left Length Ln Log Lower LPad LTrim MD5 Mod NullIf Ord Pi Power Radians Repeat Replace Reverse
    Right Round RPad RTrim SHA1 SHA224 SHA256 SHA384 SHA512 Sign Sin Sqrt StrIndex Substr Tan Trim Trunc Upper
"""
_EXPRESSIONS = """
    Case Col ColPairs CombinedExpression DurationExpression ExpressionList ExpressionWrapper NegatedExpression
    TemporalSubtraction Value When
"""
#: Compared by their exact class: a subclass may mean something else.
_KNOWN = {
    WhereNode,
    NothingNode,
    *(getattr(functions, name) for name in _FUNCTIONS.split() if hasattr(functions, name)),
    *(getattr(expressions, name) for name in _EXPRESSIONS.split() if hasattr(expressions, name)),
}


def selects_the_same_again(where: Any) -> bool:
    """Whether a WHERE depends on constants and on the columns of its row alone, as far as can be known."""
    return all(map(_is_known, _parts(where)))


def _is_known(part: Any) -> bool:
    if getattr(part, "extra", None):
        return False  # such as the name of another function, or a template
    kind = type(part)
    return kind in _KNOWN or (issubclass(kind, (Lookup, Transform)) and kind.__module__.startswith("django.db.models."))


def _parts(part: Any) -> Iterator[Any]:
    """Yield an expression and all parts of it, without constants."""
    if isinstance(part, (list, tuple, set, frozenset)):
        for each in part:
            yield from _parts(each)
    elif hasattr(part, "resolve_expression") or hasattr(part, "as_sql"):
        yield part
        if isinstance(part, Lookup):
            yield from _parts((part.lhs, part.rhs))
        elif isinstance(part, WhereNode):
            yield from _parts(part.children)
        elif hasattr(part, "get_source_expressions"):
            yield from _parts(part.get_source_expressions())
