"""A whole rebuild against the scan that it cannot do without: ``make bench-rebuild`` (about half an hour).

5,000,000 rows with an integer primary key and 10,000,000 with a slug, in a PostgreSQL, a MariaDB and an SQLite of the
benchmark's own, which go when it ends. ``BENCH_ROWS`` and ``BENCH_TEXTS`` set other numbers.
A rebuild is all that ``rebuild_filter`` does: the summary, the new generation, the state row, the barrier, scan and
bits, the checksum, the measured error rate, publishing, clearing away. Only the two fixed waits, which give other
processes time to hear of it, are taken out of the comparisons and reported on their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.databases import VENDORS, servers, use
from bench.scans import (
    ROWS,
    TABLE,
    TEXTS,
    all_ids,
    check,
    driver_cursor,
    orm_iterator,
    scans,
    text_pages,
    unbuffered_cursor,
)

ROUNDS, TEXT_ROUNDS = 5, 3
RATE = 0.001
ROOT = Path(__file__).resolve().parents[1]


def configure(folder: str, databases: dict[str, Any]) -> None:
    """Django with these databases, the test suite's models, and nothing else."""
    import django
    from django.conf import settings

    store = {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": f"{folder}/filters"}}
    settings.configure(
        SECRET_KEY="for the benchmark alone",
        INSTALLED_APPS=["bloomguard", "tests.shop"],
        DATABASES=databases,
        DATABASE_ROUTERS=["tests.support.database.Router"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        BLOOMGUARD={"STORES": {"default": store}},
        USE_TZ=True,
    )
    django.setup()
    register_guards()


def register_guards() -> None:
    """For each database one guard of each kind, and one of texts: ``postgresql-auto``, ``postgresql-bloom``, ..."""
    from django.db import connections

    from bloomguard.guards import Guard, registry
    from tests.shop.models import Article, Product

    for alias in connections:
        for kind in ("auto", "bloom"):
            about = {"name": f"{alias}-{kind}", "filter": kind, "error_rate": RATE}
            registry.add(type("BenchGuard", (Guard,), about)(Product))
        about = {"name": f"{alias}-text", "lookup": "slug", "error_rate": RATE}
        registry.add(type("BenchGuard", (Guard,), about)(Article))


@contextmanager
def at(alias: str) -> Iterator[None]:
    """Work on one of the databases."""
    use(alias)
    try:
        yield
    finally:
        use("default")


def fill(alias: str) -> None:
    """The rows: dense ids and a name; slugs."""
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    vendor = connections[alias].vendor

    def numbers(most: int) -> str:
        return {
            "postgresql": f"SELECT n FROM generate_series(1, {most}) AS n",
            "sqlite": f"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT {most}) SELECT n FROM r",
            "mysql": f"SELECT seq AS n FROM seq_1_to_{most}",
        }[vendor]

    is_mysql = vendor == "mysql"
    name = "concat('product number ', n)" if is_mysql else "'product number ' || n"
    slug = "concat('article-', n, '-of-many')" if is_mysql else "'article-' || n || '-of-many'"
    analyze = {"sqlite": "ANALYZE", "postgresql": "VACUUM ANALYZE", "mysql": f"ANALYZE TABLE {TABLE}, shop_article"}[
        vendor
    ]
    with connections[alias].cursor() as cursor:
        cursor.execute(f"INSERT INTO {TABLE} (id, name) SELECT n, {name} FROM ({numbers(ROWS)}) AS s")
        slugs = f"SELECT {slug}, n < 0 FROM ({numbers(TEXTS)}) AS s"
        cursor.execute(f"INSERT INTO shop_article (slug, deleted) {slugs}")
    with connections[alias].cursor() as cursor:
        cursor.execute(analyze)


def rebuilt(alias: str, kind: str) -> Callable[[], None]:
    """A whole rebuild, its two waits taken out."""
    from bloomguard.guards import registry
    from bloomguard.rebuild import Rebuild

    def build() -> None:
        with at(alias):
            report = Rebuild(registry[f"{alias}-{kind}"], sleep=lambda seconds: None).run()
        check(report.rows, TEXTS if kind == "text" else ROWS)

    return build


def into_rbloom(alias: str) -> Callable[[], None]:
    """What one would write without bloomguard; with ``hash()``, the fastest that rbloom has, which no file outlives."""
    from rbloom import Bloom

    def build() -> None:
        bloom = Bloom(ROWS * 3 // 2, RATE)
        bloom.update(all_ids(alias))
        check(ROWS)

    return build


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_of_child(given: str, *command: str) -> int:
    """The most bytes that a ``manage.py`` of its own held in memory."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.rebuild", given, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(run.stdout.splitlines()[-1])


def child(given: str, *command: str) -> None:
    """Run a command as ``manage.py`` would, and print this process's peak memory."""
    wanted = json.loads(given)
    configure(wanted["folder"], wanted["databases"])
    from django.core.management import call_command

    if command != ("idle",):
        with at(command[1].split("-")[0]):
            call_command(*command, verbosity=0, skip_checks=True)
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024)


def compare(report: Any, alias: str) -> dict[str, Callable[[], object]]:
    """Time each scan once or twice to find the fastest, and return the contestants of the comparison."""
    vendor = VENDORS[alias]
    found = scans(alias)
    seconds = {name: min(timed(scan), timed(scan)) for name, scan in found.items()}
    for name in sorted(seconds, key=seconds.__getitem__):
        report.add(f"{vendor}: scan by {name}, best of 2", seconds[name], "s")
    paged = {name: scan for name, scan in found.items() if not name.startswith("one ")}
    fastest = sorted(paged, key=seconds.__getitem__)[:2]
    whole = [name for name in found if name.startswith("one ")]
    contestants: dict[str, Callable[[], object]] = {f"{vendor} scan: {name}": found[name] for name in fastest + whole}
    contestants[f"{vendor} rebuild: auto"] = rebuilt(alias, "auto")
    contestants[f"{vendor} rebuild: bloom"] = rebuilt(alias, "bloom")
    contestants[f"{vendor} rbloom"] = into_rbloom(alias)
    return contestants


def tell(report: Any, alias: str, taken: dict[str, list[float]]) -> None:
    from bench.report import median, ratio

    vendor = VENDORS[alias]
    names = [name for name in taken if name.startswith(f"{vendor} scan")]
    (whole,) = (name for name in names if ": one " in name)
    fastest = min((name for name in names if name != whole), key=lambda name: median(taken, name))
    for name in names:
        report.add(name.replace(" scan:", ": scan by"), median(taken, name), "s")
    report.add(f"{vendor}: iterator() into rbloom", median(taken, f"{vendor} rbloom"), "s")
    for kind, what in (("auto", "rebuild, by default an exact bitmap"), ("bloom", "rebuild with filter = 'bloom'")):
        ours = f"{vendor} rebuild: {kind}"
        report.add(f"{vendor}: {what}", median(taken, ours), "s")
        report.add(
            f"{vendor}: {what}", ratio(taken, ours, fastest), against=fastest.split(": ")[1], at_most=1.3,
            reason="the scan leaves one core, on which hashing has to keep up; that core was not free",
        )  # fmt: skip
        report.add(
            f"{vendor}: {what}, times as fast", 1 / ratio(taken, ours, f"{vendor} rbloom"),
            against="iterator(), rbloom", at_least=3.5,
            reason="reading alone takes most of the time that the target leaves, as fast as iterator() is here",
        )  # fmt: skip
        # In one value and without bounds: no way to build a filter, but the least that reading the ids can take.
        report.add(f"{vendor}: {what}", ratio(taken, ours, whole), against=whole.split(": ")[1])


def compare_texts(report: Any, alias: str) -> None:
    """Texts are hashed one by one under the interpreter's lock, which the driver's cursor holds too."""
    from bench.report import interleave, median, ratio

    what = f"{VENDORS[alias]}: {TEXTS // 1_000_000}M texts"
    driver = unbuffered_cursor(texts=True) if alias == "mariadb" else driver_cursor(alias, texts=True)
    found = {"driver's cursor": driver, "iterator()": orm_iterator(alias, texts=True)}
    joined = {} if alias == "mariadb" else {"pages of joined texts": text_pages(alias)}
    taken = interleave({**found, **joined, "rebuild": rebuilt(alias, "text")}, TEXT_ROUNDS)
    fastest = min(found, key=lambda name: median(taken, name))
    for name in (fastest, *joined):
        report.add(f"{what}, scan by {name}", median(taken, name), "s")
    report.add(f"{what}, rebuild", median(taken, "rebuild"), "s")
    report.add(
        f"{what}, rebuild", ratio(taken, "rebuild", fastest), against=fastest, at_most=2,
        reason="BLAKE2b takes as long for a text as the cursor, and neither lets another thread run meanwhile",
    )  # fmt: skip
    for name in joined:
        report.add(f"{what}, rebuild", ratio(taken, "rebuild", name), against=name)


def main() -> None:
    from bench.report import Report, interleave

    report = Report("rebuild", f"Rebuilds of {ROWS:,} rows, and of {TEXTS:,} with a slug")
    report.start()
    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as folder:
        databases = {
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{folder}/db.sqlite3",
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"},
            },
            **servers(report),
        }
        configure(folder, databases)
        from bloomguard.guards import registry
        from bloomguard.rebuild import Rebuild

        for alias in databases:
            fill(alias)
        contestants: dict[str, Callable[[], object]] = {}
        for alias in databases:
            contestants |= compare(report, alias)
        taken = interleave(contestants, ROUNDS)
        for alias in databases:
            tell(report, alias, taken)
            compare_texts(report, alias)

        with at("postgresql"):
            waited = timed(Rebuild(registry["postgresql-auto"]).run)
        report.add("PostgreSQL: the same command in all, with its two fixed waits", waited, "s")
        given = json.dumps({"folder": folder, "databases": databases})
        for alias in databases:
            for kind in ("auto", "bloom", "text"):
                over = peak_of_child(given, "rebuild_filter", f"{alias}-{kind}") - peak_of_child(given, "idle")
                name = f"{VENDORS[alias]}: peak memory of rebuild_filter ({kind})"
                report.add(name, over / 1e6, "MB", against="an idle manage.py", at_most=100)
    report.finish()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    else:
        main()
