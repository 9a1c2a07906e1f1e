"""`manage.py demo`: attack the example in five modes and report what the guard changes."""

import io
import json
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from gazetteer.demo import report
from gazetteer.demo.clients import Tally, attack
from gazetteer.demo.server import WORKERS, serving
from gazetteer.demo.traffic import draw_traffic
from gazetteer.models import City

GUARD = "city"
REQUESTS_PER_SECOND = 12_000  # more than the server can answer, so that the clock ends the run
WARM_UP_REQUESTS = 2_000
TURNS = 4  # the modes take turns, so that other work on the machine meets all of them


def between(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            raise ArgumentTypeError(f"should be a number from {low} to {high}, but is {text!r}")
        return int(text)

    return parse


class Command(BaseCommand):
    help = "Attack the example with IDs that don't exist: unguarded, with null caching, and guarded in three places."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seconds", type=between(1, 60), default=8, help="of each mode (default: 8)")
        parser.add_argument("--clients", type=between(1, 64), default=4, help="at once (default: 4)")
        parser.add_argument("--report", type=Path, default=Path(), metavar="DIR", help="where the report goes")

    def handle(self, *, seconds: int, clients: int, verbosity: int, **options: Any) -> None:
        say = self.stdout.write if verbosity else lambda _: None
        call_command("migrate", verbosity=0)
        call_command("load_cities", verbosity=min(verbosity, 1))
        say("Building the filters")
        build = rebuild(verbosity)

        ids, populations = zip(*City.objects.order_by("pk").values_list("pk", "population"))
        connections.close_all()
        drawn = draw_traffic(ids, populations, WARM_UP_REQUESTS + REQUESTS_PER_SECOND * seconds, seed=1)
        warm_up, traffic = drawn.split(WARM_UP_REQUESTS)

        say(f"Attacking for {seconds} s each, in {TURNS} turns: {', '.join(report.MODES.values())}")
        turns: dict[str, list[list[Tally]]] = {mode: [] for mode in report.MODES}
        modes = {}
        try:
            with terminable(), ExitStack() as servers:
                ports = {}
                for mode in report.MODES:
                    ports[mode] = servers.enter_context(serving(mode))
                for turn in range(TURNS):
                    part = traffic.share(turn, TURNS)
                    for mode, port in ports.items():
                        tallies = attack(port, part, warm_up, clients=clients, workers=WORKERS, seconds=seconds / TURNS)
                        turns[mode].append(tallies)
            for mode, each in turns.items():
                modes[mode] = report.add_up(*each)
        except RuntimeError as error:
            raise CommandError(f"{mode}: {error}") from error

        result = report.Report(modes=modes, build=build)
        report.write(result, options["report"])
        files = f"{options['report'] / 'demo-report'}.json, .png, -light.svg and -dark.svg"
        say(f"\n{report.as_table(result)}\n\nWritten: {files}")
        if shortfalls := report.shortfalls(result):
            say("\n".join(["Was the machine busy with something else?", *shortfalls]))
        if failures := report.failures(result):
            raise CommandError("\n".join(["The demo did not show what it should:", *failures]))


def rebuild(verbosity: int) -> report.BuildFigures:
    """Build all filters, with a progress bar on stderr. Returns the figures of the one that is attacked."""
    output = io.StringIO()
    # What it advises at a first build is for sites with processes from before.
    call_command("rebuild_filter", json=True, verbosity=verbosity, stdout=output, stderr=io.StringIO())
    guards = {guard["name"]: guard for guard in json.loads(output.getvalue())["guards"]}
    names = report.BuildFigures.__dataclass_fields__
    return report.BuildFigures(**{name: guards[GUARD][name] for name in names})


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM an exception, as Ctrl-C is, so that every process that was started is stopped."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
