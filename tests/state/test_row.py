"""Which state rows were put back, by what a process has read before."""

from __future__ import annotations

from bloomguard.state.row import FENCED, State, VanishedRows


def test_a_read_that_began_before_the_row_was_missed_shows_no_return(clock):
    """Threads read at the same time: the answer to an earlier question may come last."""
    rows, vanished = {"city": State("city", version=1, active="a")}, VanishedRows(clock)
    vanished.put_back(rows, {}, clock.now - 1)

    assert vanished.put_back({}, rows, clock.now - 2) == []
    assert vanished.put_back({}, rows, clock.now + 1) == ["city"]


def test_rows_of_another_database_are_not_older():
    """As after a failover: its rows are judged by its identity."""
    known = {"city": State("city", version=2, active="a", here="one")}
    others = {"city": State("city", version=1, active="a", here="other")}
    older = {"city": State("city", version=1, active="a", here="one")}
    vanished = VanishedRows(lambda: 0.0)

    assert vanished.put_back(known, others, 0.0) == []
    assert vanished.put_back(known, older, 0.0) == ["city"]


def test_what_a_writers_transaction_does_not_see_is_not_put_back_later(clock):
    """It may be older than the first build, and see no row yet; meanwhile the guard counts as fenced for it."""
    rows, vanished = {"city": State("city", version=1, active="a")}, VanishedRows(clock)

    assert vanished.added_to({}, "", 2.0, known=rows)["city"].status == FENCED
    assert vanished.put_back(rows, rows, clock.now + 1) == []
