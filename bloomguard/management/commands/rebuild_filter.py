"""``manage.py rebuild_filter``: build the filters of all guards, or of those named."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from tqdm import tqdm

from ...exceptions import BuilderBusy, ConfigurationError, RebuildError, StoreError
from ...filters import FilterError
from ...guards import Guard, registry
from ...plans import Plan, Report
from ...rebuild import Rebuild, run_all

EX_TEMPFAIL = 75  # sysexits.h: try again later


class Command(BaseCommand):
    help = "Build the filter of every guard, or of the guards named, and publish it. What was served goes on meanwhile."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", metavar="name", help="guards to build; all of them if none is named")
        parser.add_argument("--dry-run", action="store_true", help="tell rows, bytes and error rate, and build nothing")
        parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            guards = [registry[name] for name in dict.fromkeys(options["names"])] or list(registry)
            if not guards:
                raise CommandError("there is no guard to build: register one in an app's guards.py")
            figures = self._plans(guards, options) if options["dry_run"] else self._builds(guards, options)
        except (ConfigurationError, RebuildError, StoreError, FilterError, DatabaseError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("stopped; what was served before is served on", returncode=130) from None
        failed = [outcome for outcome in figures if isinstance(outcome, RebuildError)]
        if options["json"]:
            self.stdout.write(json.dumps({"guards": [_named(each) for each in figures if each not in failed]}))
        if failed:
            busy = all(isinstance(error, BuilderBusy) for error in failed)
            raise CommandError("\n".join(map(str, failed)), returncode=EX_TEMPFAIL if busy else 1) from failed[0]

    def _plans(self, guards: list[Guard], options: dict[str, Any]) -> list[Any]:
        plans = [Rebuild(guard).plan() for guard in guards]
        for plan in plans if options["verbosity"] and not options["json"] else []:
            self.stdout.write(
                f"{plan.guard}: about {plan.rows:,} rows; a {plan.kind} filter with room for {plan.capacity:,} at an "
                f"error rate of {plan.error_rate:g} takes {_size(plan.bytes)} in {_count(plan.shards, 'shard')}"
            )
        return plans

    def _builds(self, guards: list[Guard], options: dict[str, Any]) -> list[Any]:
        quiet = options["verbosity"] == 0
        with ExitStack() as bars:
            rebuilds = [Rebuild(guard, progress=_Bar(guard, bars, quiet)) for guard in guards]
            outcomes = run_all(rebuilds)
        for report in outcomes if not quiet and not options["json"] else []:
            if isinstance(report, Report):
                self.stdout.write(
                    f"{report.guard}: {report.rows:,} rows in a {report.kind} filter of {_size(report.bytes)}, built "
                    f"in {report.seconds:.1f} s after {report.waited_seconds:.1f} s of waiting for writers; error rate "
                    f"{report.error_rate_measured:.4%} now, {report.error_rate:.4%} when full"
                )
        return outcomes


class _Bar:
    """A guard's progress bar, there from its first page to the next guard's."""

    def __init__(self, guard: Guard, stack: ExitStack, quiet: bool) -> None:
        self._guard, self._stack, self._quiet = guard, stack, quiet
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._stack.close()
            bar = tqdm(desc=self._guard.name, unit=" rows", unit_scale=True, disable=self._quiet, file=sys.stderr)
            self._bar = self._stack.enter_context(bar)
        self._bar.total = total
        self._bar.update(done - self._bar.n)


def _named(figures: Plan | Report) -> dict[str, Any]:
    found = asdict(figures)
    return {"name": found.pop("guard"), **found}


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else f"{count} bytes"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
