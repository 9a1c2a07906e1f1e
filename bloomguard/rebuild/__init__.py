"""Build a guard's filter from its table and publish it."""

from .rebuild import Rebuild, run_all
from .standby import clear_away, roll_back_all

__all__ = ["Rebuild", "clear_away", "roll_back_all", "run_all"]
