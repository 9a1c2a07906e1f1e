"""How fast ``verify_filter`` asks a filter for every row: ``make bench-verify`` (about a minute).

1,000,000 rows with an integer primary key, in a PostgreSQL, a MariaDB and an SQLite of the benchmark's own.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("BENCH_ROWS", "1000000")

from bench.databases import VENDORS, servers
from bench.rebuild import at, configure, fill
from bench.scans import ROWS

ROUNDS = 5
#: Tens of millions of rows in minutes: twenty-four million in two.
ENOUGH = 200_000


def main() -> None:
    from bench.report import Report, interleave, median

    report = Report("verify", f"verify_filter over {ROWS:,} rows")
    report.start()
    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as folder:
        databases: dict[str, Any] = {
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/db.sqlite3"},
            **servers(report),
        }
        configure(folder, databases)
        from bloomguard.guards import Guard, registry
        from bloomguard.rebuild import Rebuild
        from bloomguard.rebuild.verify import Verification
        from tests.shop.models import Product

        contestants = {}
        for alias in databases:
            registry.add(type("BenchGuard", (Guard,), {"name": f"{alias}-cuckoo", "filter": "cuckoo"})(Product))
            fill(alias)  # by raw SQL, which fences what is built
        for alias in databases:
            for kind in ("auto", "bloom", "cuckoo"):
                guard = registry[f"{alias}-{kind}"]

                def verify(guard: Guard = guard, alias: str = alias) -> None:
                    with at(alias):
                        found = Verification(guard).run()
                    if (found.rows, found.missing) != (ROWS, 0):
                        raise SystemExit(f"{found.rows:,} rows were seen, {found.missing:,} of them missing")

                with at(alias):
                    Rebuild(guard, sleep=lambda seconds: None).run()
                contestants[f"{VENDORS[alias]}: verify_filter ({kind})"] = verify
        taken = interleave(contestants, ROUNDS)
        for name in taken:
            report.add(name, ROWS / median(taken, name), "rows/s", at_least=ENOUGH)
    report.finish()


if __name__ == "__main__":
    main()
