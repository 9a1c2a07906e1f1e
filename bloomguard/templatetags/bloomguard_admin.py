"""How the admin page writes numbers: as the reader's language does, but for those that a drawing is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils import formats
from django.utils.timesince import timesince

register = template.Library()


@register.filter
def grouped(value: int | None) -> str:
    """A number with its thousands apart; a dash where nobody knows it."""
    return "–" if value is None else formats.number_format(value, 0, force_grouping=True)


@register.filter
def plain(value: Any) -> str:
    """A number as SVG and HTML take it, with a point in every language."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@register.filter
def percent(value: float, places: int) -> str:
    """A share, 0 to 1, in percent."""
    rounded = round(100 * value, places)  # number_format cuts off
    return f"{formats.number_format(rounded, places)}%"


@register.filter
def meter(value: float) -> str:
    """A share, 0 to 1, as the width of a bar in a drawing that is 100 wide."""
    return f"{100 * min(max(value, 0.0), 1.0):.1f}"


@register.filter
def days(value: float) -> int:
    """Whole days."""
    return int(value)


@register.filter
def since(value: datetime | None) -> str:
    """How long ago, in one unit of time."""
    return timesince(value, depth=1) if value else ""
