"""Queries for one row: the guard answers in place of a SELECT, or caches what it gives."""

from .scope import guarded_lookups

__all__ = ["guarded_lookups"]
