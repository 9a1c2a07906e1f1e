"""Errors of our own, each kind said once: a flood of requests is to be none of log lines."""

from __future__ import annotations

import logging

logger = logging.getLogger("bloomguard")


class Complaints:
    """Logs an error with its trace, unless one of its class was logged here before."""

    def __init__(self) -> None:
        self._said: set[type[BaseException]] = set()

    def say(self, error: Exception, message: str, *args: object) -> None:
        """Log ``error``; ``message`` and ``args`` are those of :meth:`logging.Logger.error`, and hold no ID."""
        if type(error) not in self._said:
            self._said.add(type(error))
            logger.error(message, *args, exc_info=error)

    def forget(self) -> None:
        """Begin anew, as in a process that has just started."""
        self._said.clear()
