"""Filters in Redis or Valkey, shared by all hosts."""

from .store import RedisStore

__all__ = ["RedisStore"]
