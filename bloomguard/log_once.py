"""Log an error once, so that a flood of requests does not flood the log."""

from __future__ import annotations

import logging

logger = logging.getLogger("bloomguard")


class LogOnce:
    """A logger that logs each message once for each type of exception, with the traceback."""

    def __init__(self) -> None:
        self._logged: set[tuple[object, ...]] = set()

    def error(self, error: Exception, message: str, *args: object) -> None:
        """Log ``error``; ``message`` and ``args`` are as for :meth:`logging.Logger.error`, without IDs."""
        kind = (type(error), message, *args)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error(message, *args, exc_info=error)

    def warning(self, message: str, *args: object) -> None:
        """Log a warning, once with these ``args``, and without a traceback: that may contain an ID."""
        if (message, *args) not in self._logged:
            self._logged.add((message, *args))
            logger.warning(message, *args)

    def forget(self) -> None:
        """Forget what was logged, as in a new process."""
        self._logged.clear()
