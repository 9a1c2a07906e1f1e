"""``manage.py filter_stats``: show the guards' counters of the last hour, or of another period."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ...guards import Guard
from ...guards.counters import FALSE_ABSENCE, FALSE_POSITIVE, WOULD_BLOCK, WOULD_HARM
from ...metrics import DAY, HOUR, MINUTE, Series, read_series
from .. import GuardsCommand, seconds

_CLEAR = "\x1b[H\x1b[2J"
_TOTALS = ("checks", "blocked", "avoided", "absent", "maybe", "unknown")


class Command(GuardsCommand):
    """``manage.py filter_stats``."""

    help = (
        "Show what all guards, or the named ones, did. Blocked: requests that ended as a guard's 404. Avoided: queries "
        "that were not sent, also by blocked requests. Checks: each had the verdict absent, maybe or unknown. False "
        "positives: maybe, and then a query found nothing; their share should be the guard's error_rate at most. "
        "Counts all processes that share a store, with a delay of some seconds."
    )
    purpose = "show"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--since",
            type=partial(seconds, least="1m", most="31d"),
            default="1h",
            metavar="TIME",
            help="the period to show: 15m, 1h (default), 7d, ..., at most 31d; by the hour if longer than a day",
        )
        parser.add_argument(
            "--watch", type=seconds, nargs="?", const=5.0, metavar="TIME", help="repeat every 5s, or TIME, until Ctrl-C"
        )

    def run(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        try:
            self._print(guards, options)
            while options["watch"] is not None:
                self.stdout.flush()
                time.sleep(options["watch"])
                self._print(guards, options)
        except KeyboardInterrupt:
            if options["watch"] is None:
                raise
        except BrokenPipeError:  # its reader has ended, as ``head`` does; Python writes the rest when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())

    def _print(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc)
        start, step = now - timedelta(seconds=options["since"]), MINUTE if options["since"] <= DAY else HOUR
        found = read_series(guards, start, now, step)
        shown = [(guard, found[guard.name]) for guard in guards]
        if options["json"]:
            since = min(series.start for _, series in shown)
            figures = {
                "since": datetime.fromtimestamp(since, timezone.utc).isoformat(),
                "until": now.isoformat(timespec="seconds"),
                "guards": [_figures(guard, series) for guard, series in shown],
            }
            self.stdout.write(json.dumps(figures))
            return
        if options["watch"] is not None and self.stdout.isatty():
            self.stdout.write(_CLEAR, ending="")
        head = ("guard", *_TOTALS, "false positives", "error_rate", "time/check")
        for line in _table([head, *(_row(guard, series) for guard, series in shown)]):
            self.stdout.write(line)
        for line in (line for _, series in shown for line in _remarks(series)):
            self.stdout.write(line)
        if not any(series.total("checks") or series.error for _, series in shown):
            self.stdout.write("nothing was counted in this time")


def _figures(guard: Guard, series: Series) -> dict[str, Any]:
    check = series.mean_check_seconds

    def total(name: str) -> int | None:
        return None if series.error else series.total(name)

    return {
        "name": guard.name,
        **{name: total(name) for name in _TOTALS},
        "unknown_reasons": series.by_reason("unknown"),
        "false_positives": total(FALSE_POSITIVE),
        "false_absences": total(FALSE_ABSENCE),
        "would_be_404": total(WOULD_BLOCK),
        "would_be_false_404": total(WOULD_HARM),
        "error_rate": guard.error_rate,
        "error_rate_measured": series.false_positive_rate,
        "check_microseconds": None if check is None else round(check * 1e6, 2),
        "error": series.error,
    }


def _row(guard: Guard, series: Series) -> tuple[str, ...]:
    if series.error:
        return guard.name, *["-"] * (len(_TOTALS) + 1), f"{guard.error_rate:.3%}", "-"
    totals = [f"{series.total(name):,}" for name in _TOTALS]
    rate, check = series.false_positive_rate, series.mean_check_seconds
    wrong = f"{series.total(FALSE_POSITIVE):,}" + ("" if rate is None else f" ({rate:.3%})")
    return guard.name, *totals, wrong, f"{guard.error_rate:.3%}", "-" if check is None else f"{check * 1e6:,.1f} us"


def _remarks(series: Series) -> Iterator[str]:
    """Yield the lines below the table."""
    if series.error:
        yield f"{series.guard}: no figures: {series.error}"
    if reasons := series.by_reason("unknown"):
        why = ", ".join(f"{reason} {number:,}" for reason, number in reasons.items())
        yield f"{series.guard}: passed without an answer: {why}"
    if would := series.total(WOULD_BLOCK):
        harm = series.total(WOULD_HARM)
        yield f"{series.guard}: in shadow mode, {would:,} requests would have been answered 404, {harm:,} falsely"
    if wrong := series.total(FALSE_ABSENCE):
        yield f"{series.guard}: {wrong:,} rows that exist were found to be denied; run verify_filter"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
