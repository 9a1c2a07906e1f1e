"""Filters that no guard uses by default: counting, scalable, rotating, layered."""
