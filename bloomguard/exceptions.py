"""What bloomguard raises on purpose. Nothing here reaches a visitor: the request path passes instead."""


class BloomguardError(Exception):
    """Base of bloomguard's own errors."""


class ConfigurationError(BloomguardError):
    """A setting or a guard that cannot work; the message names it, its value and the cure."""


class StoreError(BloomguardError):
    """A store could not do what was asked, or could not prove that it did."""


class StoreUnavailable(StoreError):
    """A store gave no answer just now: nothing is known to be wrong with what it holds. ``reason`` is a word or two."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownGeneration(StoreError):
    """The store has no such generation, or one that this guard must not trust."""


class RebuildError(BloomguardError):
    """A rebuild stopped; what was being served before is still being served."""


class BuilderBusy(RebuildError):
    """Somebody else is building this guard; the message says who, and since when."""
