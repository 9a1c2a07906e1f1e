"""What a filter can say no with."""


class FilterError(Exception):
    """Base of every error that :mod:`bloomguard.filters` raises on purpose."""


class InvalidShape(FilterError, ValueError):
    """A capacity, rate or size that no filter can have; the message names the value and the range."""


class TooLarge(InvalidShape):
    """A filter that would not fit; the message gives the bytes that it would take."""


class CorruptFilter(FilterError, ValueError):
    """Bytes that are not a whole, known, undamaged filter; the message says what is wrong with them."""


class MismatchedFilters(FilterError, ValueError):
    """Filters that cannot be merged; the message names what differs."""


class FilterFull(FilterError):
    """A cuckoo filter with no room for one more key. Everything that was in it still is."""


class DiscardUnsupported(FilterError, TypeError):
    """This kind cannot forget a key; ask ``supports_discard`` first."""
