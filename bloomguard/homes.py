"""Which of the settings' stores a filter lies in: the one whose identity the state row names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

from .conf import settings
from .exceptions import ConfigurationError, StoreError
from .stores import Store, stores
from .sync.state import State


def all_stores(own: Store) -> Iterator[Store]:
    """A guard's ``own`` store, then all others that can be made."""
    yield own
    for other in settings.stores:
        if other != own.alias:
            with suppress(ConfigurationError):  # a system check says so
                yield stores[other]


def home_of(identity: str, own: Store) -> Store | None:
    """The store that a row names: the guard's ``own`` or, while a guard moves from one to another, any in the settings.

    Raises :class:`StoreError` if it may be one that does not answer.
    """
    unavailable: StoreError | None = None
    for store in all_stores(own):
        try:
            if store.identity == identity:
                return store
        except StoreError as error:
            unavailable = unavailable or error
    if unavailable is not None:
        raise unavailable
    return None


def whereabouts(state: State, store: Store) -> str:
    """Where a filter is if it is not in ``store``, and what to do about it; at most 200 characters for usual hosts."""
    here = socket.gethostname()
    if not state.is_ours:
        return (
            "its filter was built from another database: this one is a copy of that, or was restored, or another "
            "server took over; run rebuild_filter"
        )
    # A store that is reached over a network can be reached from both.
    if state.host not in ("", here) and not store.waits:
        return (
            f"its filter is in a store of the host {state.host}, and {here} has another of its own; if both serve "
            "this site, use a store that all hosts share, else run rebuild_filter"
        )
    return "its filter was built in another store, or before this one was restarted; run rebuild_filter"
