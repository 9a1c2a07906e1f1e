"""Log each type of error once: a flood of requests must not become a flood of log lines."""

from __future__ import annotations

import logging

logger = logging.getLogger("bloomguard")


class LogOnce:
    """Logs an error with its traceback, unless one of its type was logged here before."""

    def __init__(self) -> None:
        self._logged: set[type[BaseException]] = set()

    def error(self, error: Exception, message: str, *args: object) -> None:
        """Log ``error``; ``message`` and ``args`` are those of :meth:`logging.Logger.error`, and hold no ID."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            logger.error(message, *args, exc_info=error)

    def forget(self) -> None:
        """Begin anew, as in a process that has just started."""
        self._logged.clear()
