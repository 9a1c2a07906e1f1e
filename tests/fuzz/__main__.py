"""``python -m tests.fuzz``: see ``--help``. The last line that it prints is a JSON object."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Steps of one program, after those that begin it.
LENGTH = 500
#: A rule that is broken is noticed within so many steps.
MOST_STEPS = 10_000


def fuzz(
    kind: str, seeds: Sequence[int], most: int, length: int, without: list[str], explain: bool, broken: list[str]
) -> dict[str, Any]:
    """Run programs on a database of its own; what was counted, and the first failure, shrunk."""
    from tests.support.mariadb import MariaDB
    from tests.support.servers import postgresql

    from .databases import database_for, set_up

    with tempfile.TemporaryDirectory(prefix="bloomguard-fuzz-") as path:
        folder = Path(path)
        server: dict[str, Any] = {}
        if kind == "postgresql":
            server = postgresql()
            create_databases(server, ["fuzz", "fuzz_twin"])
        elif kind == "mariadb":
            made = MariaDB("--innodb-flush-log-at-trx-commit=0")
            for name in ("fuzz", "fuzz_twin"):
                server = made.database(name)
        store = {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": str(folder / "filters")}}
        if seeds[0] % 2:
            store = {"BACKEND": "bloomguard.stores.memory.MemoryStore"}
        set_up(database_for(folder, kind, "fuzz", server), guarded=True, store=store)

        from .machine import Machine

        machine = Machine(database_for(folder, kind, "fuzz", server), database_for(folder, kind, "fuzz_twin", server))
        machine.without = without
        try:
            return run_broken(machine, broken, length) if broken else run(machine, seeds, most, length, explain)
        finally:
            machine.close()


def run(machine: Any, seeds: Sequence[int], most: int, length: int, explain: bool) -> dict[str, Any]:
    """Run one program after the other until ``most`` steps were made: some are given up before their end."""
    from .machine import Wrong
    from .programs import program
    from .shrink import shrunk

    for seed in seeds:
        if machine.counts["steps"] >= most:
            break
        steps = program(seed, length)
        try:
            try:
                machine.run(steps, explain)
            finally:
                if explain:
                    print("\n".join(machine.explained))
        except Wrong as error:
            found = {"seed": seed, "error": str(error)}
            short = shrunk(machine, steps)
            if short is not None:
                found |= {"program": short.program, "shrunk": short.error, "explained": short.explained}
            return {**machine.counts, "wrong": found}
    return {**machine.counts, "wrong": None}


def run_broken(machine: Any, names: list[str], length: int) -> dict[str, Any]:
    """For each rule that is broken the number of steps until it is noticed, and what is said then."""
    from .broken import BROKEN
    from .machine import Wrong
    from .programs import program

    found: dict[str, Any] = {}
    for name in names:
        machine.counts.clear()
        with BROKEN[name]():
            for seed in range(MOST_STEPS // length):
                try:
                    machine.run(program(seed, length))
                except Wrong as error:
                    found[name] = [machine.counts["steps"], str(error)]
                    break
            else:
                found[name] = None
    return {"broken": found, "wrong": None}


def create_databases(server: dict[str, str], names: list[str]) -> None:
    """Databases of a server without autovacuum.

    After it has analysed a table of one database, its plans, and so the order in which rows meet a unique constraint,
    are no longer those of the other.
    """
    import psycopg

    with psycopg.connect(
        dbname=server["NAME"], user=server["USER"], host=server["HOST"], port=server["PORT"] or None, autocommit=True
    ) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
        for name in names:
            connection.execute(f"CREATE DATABASE {name}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Write at random, with and without.")
    parser.add_argument("--database", choices=["sqlite", "postgresql", "mariadb"], default="sqlite")
    parser.add_argument("--seed", type=int, help="this one program")
    parser.add_argument("--steps", type=int, default=5_000, help="so many steps, in programs of some hundreds")
    parser.add_argument("--length", type=int, default=LENGTH, help="steps of one program")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--explain", action="store_true", help="print every statement")
    parser.add_argument("--without", default="", help="names of what no step is to do, with commas between")
    parser.add_argument("--broken", nargs="*", help="break these rules of the package, one at a time")
    wanted = parser.parse_args()
    first = wanted.first if wanted.seed is None else wanted.seed
    seeds = range(first, first + (2 * wanted.steps // wanted.length + 1 if wanted.seed is None else 1))
    began = time.perf_counter()
    how = (wanted.without.split(","), wanted.explain, wanted.broken or [])
    found = fuzz(wanted.database, seeds, wanted.steps, wanted.length, *how)
    wrong = found["wrong"]
    if wrong:
        print("\n".join(wrong.pop("explained", [])))
    print(json.dumps({**found, "seconds": round(time.perf_counter() - began, 1)}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
