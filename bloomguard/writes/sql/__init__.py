"""A parser for raw SQL: which tables a statement writes, and how."""
