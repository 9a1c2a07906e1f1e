"""The exceptions that bloomguard raises.

Requests that only read never see them: they pass. A write sees one if neither its add nor a fence succeeds.
"""


class BloomGuardError(Exception):
    """Base class of bloomguard's exceptions."""


class ConfigurationError(BloomGuardError):
    """A setting or a guard is wrong; the message shows its name, its value and the cure."""


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
