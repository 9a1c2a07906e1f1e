"""Template tags of the admin page: what differs between versions of Django, and numbers for people and for SVG."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import django
from django import template
from django.utils import formats
from django.utils.timesince import timesince

register = template.Library()


@register.simple_tag
def breadcrumbs_are_a_list() -> bool:
    """Return whether this Django's admin writes its breadcrumbs as a list: 6.1 and newer."""
    return django.VERSION >= (6, 1)


@register.filter
def grouped(value: int | None) -> str:
    """Format a number with the active language's thousand separators; a dash for ``None``."""
    return "–" if value is None else formats.number_format(value, 0, force_grouping=True)


@register.filter
def plain(value: Any) -> str:
    """Format a number for SVG and HTML attributes, with a decimal point in every language."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@register.filter
def percent(value: float, places: int) -> str:
    """Format a share, 0 to 1, as percent."""
    rounded = round(100 * value, places)  # number_format truncates
    return f"{formats.number_format(rounded, places)}%"


@register.filter
def meter(value: float) -> str:
    """Return the width of a bar for a share, 0 to 1, in a drawing that is 100 wide."""
    return f"{100 * min(max(value, 0.0), 1.0):.1f}"


@register.filter
def days(value: float) -> int:
    """Round down to whole days."""
    return int(value)


@register.filter
def since(value: datetime | None) -> str:
    """Format the time since ``value``, in one unit."""
    return timesince(value, depth=1) if value else ""
