"""Exceptions of the filters."""


class FilterError(Exception):
    """Base class of the exceptions that :mod:`bloomguard.filters` raises."""


class InvalidShape(FilterError, ValueError):
    """A capacity, rate or size out of range, or keys of the wrong form; the message gives the value and the range."""


class TooLarge(InvalidShape):
    """A filter over its memory limit; the message gives the bytes that it would take."""


class CorruptFilter(FilterError, ValueError):
    """Bytes that are not a complete, undamaged filter of a known format; the message gives the fault."""


class MismatchedFilters(FilterError, ValueError):
    """Filters that cannot be merged; the message names the difference."""


class FilterFull(FilterError):
    """A scalable filter with no room for another layer. The keys that were added before are still in it."""


class DiscardUnsupported(FilterError, TypeError):
    """A kind of filter that cannot remove keys; check ``supports_discard`` first."""
