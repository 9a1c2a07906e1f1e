"""The figures of the demo: as a table, as JSON, as a chart, and what they have to prove."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .clients import Tally

#: The modes, in the order in which they are measured, and what they are called.
MODES = {
    "unguarded": "unguarded",
    "null_caching": "null caching",
    "lookup": "guarded at the lookup",
    "route": "guarded at the route",
    "door": "guarded at the door",
}
#: The usual ratio of requests a second to those of the unguarded site.
SPEEDUPS_DUE = {"lookup": 1.3, "route": 2.0, "door": 3.0}
COLORS = ["#9aa5b1", "#d9a441", "#7fb69f", "#3d9270", "#159a70"]
#: The colour of text and axes, by the page's background.
INKS = {"light": "#24292f", "dark": "#e6edf3"}


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    requests: int
    absent_requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    absent_db_queries: int
    existing_db_queries: int
    false_404s: int


@dataclass(frozen=True, kw_only=True)
class BuildFigures:
    rows: int
    seconds: float
    bytes: int
    error_rate: float
    error_rate_measured: float


@dataclass(frozen=True, kw_only=True)
class Report:
    modes: Mapping[str, ModeFigures]
    build: BuildFigures

    def speedup(self, mode: str) -> float:
        """The ratio of requests a second to those of the unguarded mode."""
        return self.modes[mode].requests_per_second / self.modes["unguarded"].requests_per_second


def add_up(*turns: list[Tally]) -> ModeFigures:
    """The figures of one mode, from what its clients saw in each turn.

    Raises RuntimeError when the server gave answers that no mode should give, such as a 500.
    """
    tallies = [tally for turn in turns for tally in turn]
    wrong = sum(sum(tally.wrong) - tally.false_404s for tally in tallies)
    if wrong:
        raise RuntimeError(f"{wrong:,} answers had a status other than 200 and 404, or found what isn't there.")
    requests = sum(sum(tally.requests) for tally in tallies)
    percentiles = statistics.quantiles((latency for tally in tallies for latency in tally.latencies), n=100)
    return ModeFigures(
        requests=requests,
        absent_requests=sum(tally.requests[0] for tally in tallies),
        requests_per_second=round(requests / sum(max(tally.seconds for tally in turn) for turn in turns), 1),
        p50_ms=round(percentiles[49] * 1000, 3),
        p99_ms=round(percentiles[98] * 1000, 3),
        absent_db_queries=sum(tally.queries[0] for tally in tallies),
        existing_db_queries=sum(tally.queries[1] for tally in tallies),
        false_404s=sum(tally.false_404s for tally in tallies),
    )


def failures(report: Report) -> list[str]:
    """What the run should have shown and did not; empty if all is well."""
    failures = []
    for mode in SPEEDUPS_DUE:
        guarded, title = report.modes[mode], MODES[mode].capitalize()
        queries_allowed = 2 * report.build.error_rate * guarded.absent_requests + 10
        if guarded.false_404s:
            failures.append(f"{title}, {guarded.false_404s:,} cities that exist were answered 404; there must be none.")
        if guarded.absent_db_queries > queries_allowed:
            failures.append(
                f"{title}, {guarded.absent_db_queries:,} database queries for absent IDs;"
                f" at most {queries_allowed:,.0f} are due."
            )
    return failures


def shortfalls(report: Report) -> list[str]:
    """Where the guards gained less than usual, as on a busy machine."""
    return [
        f"{MODES[mode].capitalize()}, {report.speedup(mode):.2f} times the requests of unguarded;"
        f" usually at least {due} times."
        for mode, due in SPEEDUPS_DUE.items()
        if report.speedup(mode) < due
    ]


def as_table(report: Report) -> str:
    head = ["", "requests/s", "p50 ms", "p99 ms", "queries: absent", "existing", "false 404s"]
    rows = [head]
    for mode, figures in report.modes.items():
        rows.append(
            [
                MODES[mode],
                f"{figures.requests_per_second:,.0f}",
                f"{figures.p50_ms:.2f}",
                f"{figures.p99_ms:.2f}",
                f"{figures.absent_db_queries:,}",
                f"{figures.existing_db_queries:,}",
                f"{figures.false_404s:,}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in [*rows[:1], ["-" * width for width in widths], *rows[1:]]
    ]
    build = report.build
    lines += [
        "",
        "Requests a second against unguarded: "
        + ", ".join(f"{report.speedup(mode):.1f} times {MODES[mode].removeprefix('guarded ')}" for mode in SPEEDUPS_DUE)
        + ".",
        f"The filter: {build.rows:,} rows in {build.bytes / 1024:,.0f} KiB, built in {build.seconds:.2f} s,"
        f" error rate {build.error_rate_measured:.3%} ({build.error_rate:.3%} asked for).",
    ]
    return "\n".join(lines)


def write(report: Report, folder: Path) -> None:
    """Write demo-report.json, demo-report.png, and the chart as SVG for light and dark pages."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo-report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    draw(report, folder / "demo-report.png")
    for ground, ink in INKS.items():
        draw(report, folder / f"demo-report-{ground}.svg", ink)


def draw(report: Report, path: Path, ink: str | None = None) -> None:
    """Draw the chart as ``path``'s suffix says: black on white, or in ``ink`` on a transparent background."""
    import matplotlib  # imported here, because it takes a second to load and nothing else needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "Requests a second": [figures.requests_per_second for figures in report.modes.values()],
        "Latency, p50, ms": [figures.p50_ms for figures in report.modes.values()],
        "Queries per 100 absent IDs": [
            100 * figures.absent_db_queries / max(figures.absent_requests, 1) for figures in report.modes.values()
        ],
    }
    names = [MODES[mode].removeprefix("guarded ").replace(" ", "\n", 1) for mode in report.modes]
    # Text stays text, and the same figures give the same bytes.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "demo", "font.size": 11}
    if ink:
        parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        style |= dict.fromkeys(parts, ink) | {"savefig.transparent": True}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(14, 3.8), layout="constrained")
        for axis, (title, values) in zip(axes, panels.items()):
            bars = axis.bar(names, values, color=COLORS)
            axis.bar_label(bars, fmt=label, padding=2)
            axis.set_title(title, fontsize=13)
            axis.margins(y=0.15)
            axis.tick_params(axis="x", labelsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle("90% of the requests are for IDs that don't exist", fontsize=13)
        figure.savefig(path, dpi=144, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def label(value: float) -> str:
    """The label of a bar."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
