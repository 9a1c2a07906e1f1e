"""Find the store of a filter: the one in the settings whose identity the state row names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

from ..conf import settings
from ..exceptions import ConfigurationError, StoreError
from ..stores import Store, stores
from .row import State


def all_stores(own: Store) -> Iterator[Store]:
    """Yield a guard's ``own`` store, then all others in the settings that can be created."""
    yield own
    for other in settings.stores:
        if other != own.alias:
            with suppress(ConfigurationError):  # a system check reports it
                yield stores[other]


def identity_of(store: Store) -> str:
    """Return the store's identity. Raises :class:`StoreError` if it has none: its filters could not be told apart."""
    if not (identity := store.identity):
        raise StoreError(f"the store {store.alias!r} has no identity, so no filter in it could be trusted")
    return identity


def locate_store(identity: str, own: Store) -> Store | None:
    """Return the store with ``identity``: the guard's ``own`` or, while the guard moves, another one in the settings.

    Return ``None`` if no store has it. Raises :class:`StoreError` if a store that does not respond may have it.
    """
    unavailable: StoreError | None = None
    for store in all_stores(own):
        try:
            if identity and store.identity == identity:
                return store
        except StoreError as error:
            unavailable = unavailable or error
    if unavailable is not None:
        raise unavailable
    return None


def describe_location(state: State, store: Store) -> str:
    """Return where a filter is if it is not in ``store``, and the cure; at most 200 characters for usual host names."""
    here = socket.gethostname()
    if not state.is_ours:
        return (
            "its filter was built from another database: this one is a copy of that, or was restored, or another "
            "server took over; run rebuild_filter"
        )
    # A remote store is the same one for both hosts.
    if state.host not in ("", here) and not store.is_remote:
        return (
            f"its filter is in a store of the host {state.host}, and {here} has another of its own; if both serve "
            "this site, use a store that all hosts share, else run rebuild_filter"
        )
    return "its filter was built in another store, or before this one was restarted; run rebuild_filter"
