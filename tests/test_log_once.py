"""What goes wrong at every request is logged once, but nothing hides behind something else."""

from __future__ import annotations

from bloomguard.log_once import LogOnce


def test_each_message_is_logged_once_for_each_type_of_error(caplog):
    """Two guards that fail alike are both named."""
    log = LogOnce()
    for _ in range(3):
        for name in ("city", "order"):
            log.error(ValueError("a text that differs"), "guard %s failed", name)
        log.error(KeyError("x"), "guard %s failed", "city")

    assert [record.getMessage() for record in caplog.records] == [
        "guard city failed",
        "guard order failed",
        "guard city failed",
    ]
    log.forget()
    log.error(ValueError("x"), "guard %s failed", "city")
    assert len(caplog.records) == 4
