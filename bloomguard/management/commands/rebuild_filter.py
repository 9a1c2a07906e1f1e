"""``manage.py rebuild_filter``: rebuild the filters of all guards, or of the named ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import MOST_LISTED, listed
from ...exceptions import BuilderBusy, ConfigurationError, RebuildError
from ...guards import Guard
from ...models import GuardState
from ...rebuild import Rebuild, clear_away, roll_back_all, run_all
from ...rebuild.copy import FilterCopy
from ...rebuild.plan import Need, Report, assess, attempt
from ...state.table import table
from .. import (
    GuardsCommand,
    by_reason,
    counted,
    named,
    rate_in_words,
    refuse_unmigrated,
    room_in_words,
    seconds,
    size_in_words,
)

EX_USAGE = 2  # as argparse exits if options exclude each other
EX_TEMPFAIL = 75  # sysexits.h: try again later

#: For each guard, what was planned or done, for ``--json``; or the error.
Figures = list[dict[str, Any] | RebuildError]


class Command(GuardsCommand):
    """``manage.py rebuild_filter``."""

    help = "Rebuild the filters of all guards, or of the named ones. The previous filters stay active meanwhile."
    purpose = "rebuild"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--from-store",
            metavar="alias",
            help="copy the filters from this store to the guards' own stores, without scanning rows",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--dry-run", action="store_true", help="show rows, bytes and error rate; build nothing")
        what.add_argument(
            "--if-needed", action="store_true", help="rebuild only the filters that need it, and show why"
        )
        what.add_argument(
            "--roll-back",
            action="store_true",
            help="return to the previous filters of the named guards, if they were kept",
        )
        parser.add_argument(
            "--max-age",
            type=seconds,
            metavar="AGE",
            help="as --if-needed, and also rebuild filters older than this; 12h, 7d, ...",
        )
        parser.add_argument(
            "--keep-standby",
            type=seconds,
            default=0.0,
            metavar="TIME",
            help="keep the previous filter, and write to it, for a roll-back within 30m, 1h, ...",
        )

    def run(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        if wrong := _wrong_usage(options):
            raise CommandError(wrong, returncode=EX_USAGE)
        options["if_needed"] = options["if_needed"] or options["max_age"] is not None
        if not options["dry_run"]:
            refuse_unmigrated()
        modes = {"dry_run": self._plan, "roll_back": self._roll_back, "if_needed": self._build_needed}
        do = next((mode for name, mode in modes.items() if options[name]), self._build)
        figures = do(guards, options)
        errors = [(guard, each) for guard, each in zip(guards, figures) if isinstance(each, RebuildError)]
        if options["json"]:
            shown = [
                {"name": guard.name, "error": str(each)} if isinstance(each, RebuildError) else each
                for guard, each in zip(guards, figures)
            ]
            self.stdout.write(json.dumps({"guards": shown}))
        if errors:
            busy = all(isinstance(error, BuilderBusy) for _, error in errors)
            raise CommandError("\n".join(by_reason(errors)), returncode=EX_TEMPFAIL if busy else 1) from errors[0][1]

    def _plan(self, guards: Sequence[Guard], options: dict[str, Any]) -> Figures:
        figures: Figures = []
        for guard in guards:
            plan = attempt(guard, self._rebuild(guard, options).plan)
            if isinstance(plan, RebuildError):
                figures.append(plan)
                continue
            figures.append(named(plan))
            self.write(
                f"{plan.guard}: about {counted(plan.rows)}; {size_in_words(plan.bytes)} in "
                f"{counted(plan.shards, 'shard')}: a {plan.kind} filter with "
                f"{room_in_words(plan.kind, plan.capacity, plan.error_rate)}"
            )
        return figures

    def _roll_back(self, guards: Sequence[Guard], options: dict[str, Any]) -> Figures:
        figures: Figures = []
        for guard, state in zip(guards, roll_back_all(guards)):
            if isinstance(state, RebuildError):
                figures.append(state)
                continue
            self.write(f"{guard.name}: rolled back to the previous filter; the other one is dropped")
            figures.append({"name": guard.name, "generation": state.active})
        return figures

    def _build_needed(self, guards: Sequence[Guard], options: dict[str, Any]) -> Figures:
        found = {guard: attempt(guard, partial(assess, guard, options["max_age"])) for guard in guards}
        needs = {guard: need for guard, need in found.items() if isinstance(need, Need)}
        for need in needs.values():
            if need.reasons:
                self.write(f"{need.guard} needs a rebuild: {'; '.join(need.reasons)}")
            elif need.held:
                self.write(f"{need.guard} stays disabled: {need.held}; rebuild_filter {need.guard} enables it")
            else:
                self.write(
                    f"{need.guard} needs no rebuild: {counted(need.rows)}, {counted(need.keys, 'key')}, "
                    f"{need.stale_share:.1%} of them stale, capacity {need.capacity:,}"
                )
        clear_away([guard for guard, need in needs.items() if not need.reasons])
        wanted = [guard for guard, need in needs.items() if need.reasons]
        built = dict(zip(wanted, self._build(wanted, options)))
        outcomes = [(need, built.get(guard, need)) for guard, need in found.items()]
        return [
            done if isinstance(done, RebuildError) else named(need) | (done if isinstance(done, dict) else {})
            for need, done in outcomes
        ]

    def _build(self, guards: Sequence[Guard], options: dict[str, Any]) -> Figures:
        if options["verbosity"]:
            self._warn_of_first_builds(guards)
        more = {"keep_standby": options["keep_standby"]}
        rebuilds = [self._rebuild(guard, options, progress=self.progress(guard), **more) for guard in guards]
        try:
            outcomes = run_all(rebuilds)
        except KeyboardInterrupt:
            done = ", ".join(each.guard.name for each in rebuilds if each.published) or "none"
            self.interrupted = f"interrupted (rebuilt before: {done})"
            raise
        for report in outcomes:
            if isinstance(report, Report):
                self.write(
                    f"{report.guard}: {counted(report.rows)} in a {report.kind} filter of "
                    f"{size_in_words(report.bytes)}, "
                    f"built in {report.seconds:.1f} s after waiting {report.waited_seconds:.1f} s for other "
                    f"processes; {rate_in_words(report.kind, report.error_rate_measured, report.error_rate)}"
                )
                if options["keep_standby"] and not table.current(report.guard).kept:
                    why = "it had no filter, was disabled, or has a scope"
                    self.write(f"{report.guard}: nothing is kept for a roll-back: {why}")
        return [named(outcome) if isinstance(outcome, Report) else outcome for outcome in outcomes]

    def _rebuild(self, guard: Guard, options: dict[str, Any], **more: Any) -> Rebuild:
        if options["from_store"] is not None:
            return FilterCopy(guard, options["from_store"], **more)
        return Rebuild(guard, unless_held=options["if_needed"], **more)

    def _warn_of_first_builds(self, guards: Sequence[Guard]) -> None:
        """Warn on the first build of a guard: processes that run code without the guard cannot be detected."""
        published = GuardState.objects.using(table.connection.alias).filter(published_at__isnull=False)
        built = set(published.values_list("name", flat=True))
        first = []
        for guard in guards:
            with suppress(ConfigurationError):  # its own rebuild reports it
                if guard.name not in built and not guard._runtime.is_shadow:
                    first.append(guard.name)
        if first:
            named = "".join(f" {name}" for name in first) if len(first) <= MOST_LISTED else ""
            self.stderr.write(
                f"{listed(first)}: the first filter. Rows that a process without the guard writes are not in it, "
                "and would be answered 404. If such a process still runs, stop it, then run rebuild_filter"
                f"{named} again",
                self.style.WARNING,
            )


def _wrong_usage(options: dict[str, Any]) -> str:
    """Return which options contradict each other, or what one of them lacks; empty if nothing is wrong."""
    if options["max_age"] is not None and (options["dry_run"] or options["roll_back"]):
        return "--max-age rebuilds what is older: it excludes --dry-run and --roll-back"
    copies, needed = options["from_store"] is not None, options["if_needed"] or options["max_age"] is not None
    if copies and (options["roll_back"] or needed):
        return "--from-store copies filters: it excludes --roll-back, --if-needed and --max-age"
    if options["keep_standby"] and (options["roll_back"] or copies):
        return "--keep-standby keeps what a rebuild replaces: it excludes --roll-back and --from-store"
    if options["roll_back"] and not options["names"]:
        return "--roll-back returns to the previous filters: name the guards"
    return ""
