"""Log each exception type once, so that a flood of requests does not flood the log."""

from __future__ import annotations

import logging

logger = logging.getLogger("bloomguard")


class LogOnce:
    """A logger that logs each exception type once, with its traceback."""

    def __init__(self) -> None:
        self._logged: set[type[BaseException]] = set()

    def error(self, error: Exception, message: str, *args: object) -> None:
        """Log ``error``; ``message`` and ``args`` are as for :meth:`logging.Logger.error`, without IDs."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            logger.error(message, *args, exc_info=error)

    def forget(self) -> None:
        """Forget the logged types, as in a new process."""
        self._logged.clear()
