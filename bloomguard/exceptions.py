"""The exceptions that bloomguard raises.

Requests that only read never see them: they pass. A write sees one if neither its add nor a fence succeeds.
"""


class BloomGuardError(Exception):
    """Base class of bloomguard's exceptions."""


class ConfigurationError(BloomGuardError):
    """A setting or a guard is wrong; the message shows its name and the cure, but no value that may be a password."""


class StoreError(BloomGuardError):
    """A store could not perform an operation, or could not confirm it."""


class StoreUnavailable(StoreError):
    """A store does not answer at the moment; its data may be intact."""


class UnknownGeneration(StoreError):
    """The store does not have the generation, or has one that this guard must not trust."""


class RebuildError(BloomGuardError):
    """A rebuild was interrupted; the previous filter stays active."""


class BuilderBusy(RebuildError):
    """Another process is building this guard's filter, or has just changed its state row."""


# Of the filters, importable from bloomguard.filters.


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
