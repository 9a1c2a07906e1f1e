"""The keys of written rows: none that somebody may look up is left out in silence."""

from __future__ import annotations

import pytest

from bloomguard.guards import registry
from bloomguard.guards.keys import OutOfRange, Unkeyable
from bloomguard.writes.statements import _keys


def test_what_is_stored_and_has_no_key_is_left_out():
    """Nobody can look it up; nor a row whose value is NULL, whoever told of it."""
    guard = registry["product"]
    key = guard._meta.keys.key

    assert _keys(guard, "default", [(1,), ("x",), (2,)], stored=True) == [key(1), key(2)]
    assert _keys(guard, "default", [(1,), (None,), (2,)], stored=False) == [key(1), key(2)]


@pytest.mark.parametrize(("value", "error"), [("x", Unkeyable), (object(), Unkeyable), (1 << 70, OutOfRange)])
def test_what_an_instance_tells_has_to_have_a_key(value, error):
    """What the database made of it is not known, so the row may have a key that is missing."""
    with pytest.raises(error):
        _keys(registry["product"], "default", [(1,), (value,), (2,)], stored=False)
