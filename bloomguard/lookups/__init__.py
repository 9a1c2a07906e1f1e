"""Lookups: a guard answers a SELECT for one row in place of the database."""

from .context import guarded_lookups

__all__ = ["guarded_lookups"]
