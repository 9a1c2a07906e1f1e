"""``manage.py verify_filter``: check that the filters of all guards, or of the named ones, have every row."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from ...exceptions import ConfigurationError, RebuildError, StoreError
from ...filters import FilterError
from ...guards import Guard
from ...rebuild import Rebuild, run_all
from ...rebuild.verify import MOST_MISSING, Findings, Verification
from ..output import ProgressBar, chosen, named

_EXPECTED = (ConfigurationError, RebuildError, StoreError, FilterError, DatabaseError)


class Command(BaseCommand):
    """``manage.py verify_filter``."""

    help = (
        "Check that the filters of all guards, or of the named ones, have every row of the database. A guard whose "
        "filter lacks a row is fenced, and the exit code is 1."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", metavar="name", help="guards to verify (default: all)")
        parser.add_argument("--sample", type=_count, metavar="N", help="check about N random rows instead of all")
        parser.add_argument("--repair", action="store_true", help="rebuild each filter that lacks rows")
        parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found, failed = self._verify(chosen(options["names"], "verify"), options)
            wrong = [guard for guard, findings in found.items() if findings.missing]
            repaired = list[Guard]()
            if options["repair"]:
                repaired, unrepaired = self._rebuild(wrong, options)
                failed += unrepaired
        except _EXPECTED as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError(
                "interrupted; a guard is fenced if a missing row was found before", returncode=130
            ) from None
        if options["json"]:
            figures = [{**named(findings), "repaired": guard in repaired} for guard, findings in found.items()]
            self.stdout.write(json.dumps({"guards": figures}))
        left = [guard.name for guard in wrong if guard not in repaired]
        problems = [str(error) for error in failed]
        if left:
            problems.append(f"rows are missing from the filter of {', '.join(left)}: run rebuild_filter")
        if found and not any(findings.generation for findings in found.values()):
            problems.append("nothing was verified, because no filter answers: run rebuild_filter")
        if problems:
            raise CommandError("\n".join(problems)) from (failed[0] if failed else None)

    def _verify(self, guards: list[Guard], options: dict[str, Any]) -> tuple[dict[Guard, Findings], list[Exception]]:
        """Return the findings, and the errors of guards that could not be verified; after an error the others go on."""
        quiet = options["verbosity"] == 0
        found, failed = {}, list[Exception]()
        for guard in guards:
            try:
                with ExitStack() as bars:
                    verification = Verification(
                        guard, sample=options["sample"], progress=ProgressBar(guard, bars, quiet)
                    )
                    found[guard] = verification.run()
            except _EXPECTED as error:  # most of a store's errors name no guard
                failed.append(CommandError(f"{guard.name}: {str(error).removeprefix(f'{guard.name}: ')}"))
                failed[-1].__cause__ = error
                continue
            if not quiet and not options["json"]:
                self.stdout.write(_summary(found[guard]))
        return found, failed

    def _rebuild(self, guards: list[Guard], options: dict[str, Any]) -> tuple[list[Guard], list[RebuildError]]:
        """Rebuild ``guards``; return those that were rebuilt, and the errors of the others."""
        quiet = options["verbosity"] == 0
        with ExitStack() as bars:
            outcomes = run_all([Rebuild(guard, progress=ProgressBar(guard, bars, quiet)) for guard in guards])
        done, failed = list[Guard](), list[RebuildError]()
        for guard, outcome in zip(guards, outcomes, strict=True):
            if isinstance(outcome, RebuildError):
                failed.append(outcome)
                continue
            done.append(guard)
            if not quiet and not options["json"]:
                self.stdout.write(f"{outcome.guard}: rebuilt from {outcome.rows:,} rows")
        return done, failed


def _summary(findings: Findings) -> str:
    if not findings.generation:
        return f"{findings.guard}: it has no usable filter, so there is nothing to verify; requests pass"
    if findings.missing:
        at_least = "at least " if findings.missing >= MOST_MISSING else ""
        return (
            f"{findings.guard}: {at_least}{findings.missing:,} of {findings.rows:,} rows are missing from its filter; "
            "requests pass until it is rebuilt"
        )
    without = f", which was built without {', '.join(findings.unread_scopes)}" if findings.unread_scopes else ""
    return (
        f"{findings.guard}: all {findings.rows:,} rows are in its filter{without}; error rate "
        f"{findings.error_rate_measured:.4%} now, {findings.error_rate:.4%} when full; {findings.stale_share:.1%} of "
        f"its keys are stale; {findings.seconds:.1f} s"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number of rows; give a number from 1 on, as in --sample 10000")
    return int(text)
