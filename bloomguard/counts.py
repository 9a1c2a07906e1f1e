"""How often something worth knowing happened in this process: guard and reason -> number.

No lock is taken: two threads that count at the very same moment may count one. These are figures, not accounts.
"""

from __future__ import annotations

from collections import Counter

_counts: Counter[tuple[str, str]] = Counter()


def count(guard: str, reason: str) -> None:
    """Count one more ``reason`` of the guard named ``guard``."""
    _counts[guard, reason] += 1


def counted() -> dict[tuple[str, str], int]:
    """All counts since the process began, by guard and reason; a copy."""
    return dict(_counts)
