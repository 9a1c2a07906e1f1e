"""Build a guard's filter from its table and publish it."""

from .rebuild import SETTLE_SECONDS, Rebuild, clear_away, roll_back_all, run_all

__all__ = ["SETTLE_SECONDS", "Rebuild", "clear_away", "roll_back_all", "run_all"]
