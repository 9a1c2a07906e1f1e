"""``manage.py verify_filter``: check that the filters of all guards, or of the named ones, have every row."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...exceptions import RebuildError
from ...guards import Guard
from ...rebuild import Rebuild, run_all
from ...rebuild.plan import attempt
from ...rebuild.verify import MOST_MISSING, Findings, Verification
from .. import GuardsCommand, by_reason, named, rate_in_words, refuse_unmigrated


class Command(GuardsCommand):
    """``manage.py verify_filter``."""

    help = (
        "Check that the filters of all guards, or of the named ones, have every row of the database. A guard whose "
        "filter lacks a row is fenced, and the exit code is 1."
    )
    purpose = "verify"
    is_proof = True
    interrupted = "interrupted; a guard is fenced if a missing row was found before"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--sample", type=_count, metavar="N", help="check about N random rows instead of all")
        parser.add_argument("--repair", action="store_true", help="rebuild each filter that lacks rows")

    def run(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        refuse_unmigrated()
        found, errors, problems = dict[Guard, Findings](), list[tuple[Guard, RebuildError]](), list[str]()
        for guard in guards:
            verification = Verification(guard, sample=options["sample"], progress=self.progress(guard))
            findings = attempt(guard, verification.run)
            if isinstance(findings, RebuildError):
                errors.append((guard, findings))
            else:
                found[guard] = findings
                self.write(_summary(findings, "rows" if verification.sample is None else "rows of the sample"))
        wrong = [guard for guard, findings in found.items() if findings.missing]
        repaired = list[Guard]()
        if options["repair"]:
            outcomes = run_all([Rebuild(guard, progress=self.progress(guard)) for guard in wrong])
            for guard, outcome in zip(wrong, outcomes):
                if isinstance(outcome, RebuildError):
                    errors.append((guard, outcome))
                else:
                    repaired.append(guard)
                    self.write(f"{guard.name}: rebuilt from {outcome.rows:,} rows")
        if options["json"]:
            figures = [{**named(findings), "repaired": guard in repaired} for guard, findings in found.items()]
            self.stdout.write(json.dumps({"guards": figures}))
        if left := [guard.name for guard in wrong if guard not in repaired]:
            problems.append(f"rows are missing from the filter of {', '.join(left)}: run rebuild_filter")
        if found and not any(findings.generation for findings in found.values()):
            problems.append("nothing was verified, because no filter answers: run rebuild_filter")
        if errors or problems:
            cause = errors[0][1] if errors else None
            raise CommandError("\n".join([*by_reason(errors), *problems])) from cause


def _summary(findings: Findings, rows: str) -> str:
    if not findings.generation:
        return f"{findings.guard}: it has no usable filter, so there is nothing to verify; requests pass"
    if findings.missing:
        at_least = "at least " if findings.missing >= MOST_MISSING else ""
        return (
            f"{findings.guard}: {at_least}{findings.missing:,} of {findings.rows:,} {rows} are missing from its "
            "filter; requests pass until it is rebuilt"
        )
    without = f", which was built without {', '.join(findings.unread_scopes)}" if findings.unread_scopes else ""
    return (
        f"{findings.guard}: all {findings.rows:,} {rows} are in its filter{without}; "
        f"{rate_in_words(findings.kind, findings.error_rate_measured, findings.error_rate)}; "
        f"{findings.stale_share:.1%} of its keys are stale; {findings.seconds:.1f} s"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number of rows; give a number from 1 on, as in --sample 10000")
    return int(text)
