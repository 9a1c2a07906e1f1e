"""``manage.py rebuild_filter``: build the filters of all guards, or of those named."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from ...exceptions import BuilderBusy, ConfigurationError, RebuildError
from ...filters import FilterError
from ...guards import Guard, registry
from ...rebuild import Plan, Rebuild, Report

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
            make = self._plan if options["dry_run"] else self._build
            figures = [make(guard, options) for guard in guards]
        except BuilderBusy as error:
            raise CommandError(str(error), returncode=EX_TEMPFAIL) from error
        except (ConfigurationError, RebuildError, FilterError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("stopped; what was served before is served on", returncode=130) from None
        if options["json"]:
            self.stdout.write(json.dumps({"guards": figures}))

    def _plan(self, guard: Guard, options: dict[str, Any]) -> dict[str, Any]:
        plan = Rebuild(guard).plan()
        if options["verbosity"] and not options["json"]:
            self.stdout.write(
                f"{plan.guard}: about {plan.rows:,} rows; room for {plan.capacity:,} at an error rate of "
                f"{plan.error_rate:g} takes {_size(plan.bytes)} in {_count(plan.shards, 'shard')}"
            )
        return _named(plan)

    def _build(self, guard: Guard, options: dict[str, Any]) -> dict[str, Any]:
        quiet = options["verbosity"] == 0
        with tqdm(desc=guard.name, unit=" rows", unit_scale=True, disable=quiet, file=sys.stderr) as bar:

            def progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            report = Rebuild(guard, progress=progress).run()
        if not quiet and not options["json"]:
            self.stdout.write(
                f"{report.guard}: {report.rows:,} rows in {_size(report.bytes)}, {report.seconds:.1f} s of work and "
                f"{report.waited_seconds:.1f} s of waiting; error rate {report.error_rate_measured:.4%} now, "
                f"{report.error_rate:.4%} when full"
            )
        return _named(report)


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
