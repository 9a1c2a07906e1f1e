"""Django's own tests, with guards of all their models: ``python -m tests.djangos_own [MODULE ...]``.

The tests come from the source distribution of the installed Django, by pip. Each module runs in a process of its own.
One whose tests fail runs again without guards: what fails then as well is not ours. ``EXPECTED`` names the rest.

``BLOOMGUARD_COMPATIBILITY_DATABASE``: ``default``, which is SQLite, or ``postgresql``. ``BLOOMGUARD_FILTER=cuckoo``
arms filters that forget deleted rows; their guards read rows before a DELETE, so tests that count statements fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django

from tests.support import servers

ROOT = Path(__file__).resolve().parents[2]
DATABASE = os.environ.get("BLOOMGUARD_COMPATIBILITY_DATABASE", "default")
#: Of no use here: they need other databases, Django's repository, or many processes of their own.
SKIPPED = {"gis_tests", "sphinx", "import_error_package", "test_runner_apps", "templates", "admin_scripts"}
#: Tests that fail only with guards, and why.
EXPECTED = {
    "admin_checks.tests.SystemChecksTestCase.test_checks_are_performed": "checks report the guards",
    "admin_checks.tests.SystemChecksTestCase.test_custom_adminsite": "checks report the guards",
    "bulk_create.tests.BulkCreateTransactionTests.test_no_unnecessary_transaction": "the key is added before a COMMIT",
    "model_inheritance.tests.ModelInheritanceTests.test_create_child_no_update": "columns of a parent are read back",
}


def main(wanted: list[str]) -> int:
    """Run the modules; return how many tests came out otherwise than without guards, or 1 if none could run."""
    with tempfile.TemporaryDirectory() as folder:
        tests = unpacked(Path(folder))
        counts, faults = Counter[str](), list[str]()
        for module in wanted or sorted(modules(tests)):
            found = run(tests, module, guarded=True)
            if found["failed"]:
                ours = set(found["failed"]).difference(run(tests, module, guarded=False)["failed"])
                found["faults"] += sorted(f"{test}: fails with guards alone" for test in ours.difference(EXPECTED))
            counts.update(found["counts"])
            faults += found["faults"]
            print(f"{module}: {found['counts']}", *found["faults"], sep="\n  ", flush=True)
    print(f"Django {django.__version__}, {DATABASE}:", *(f"{number:,} {name}" for name, number in counts.items()))
    return len(faults) or not counts["tests"]


def unpacked(folder: Path) -> Path:
    """Download Django's source, and return its folder of tests, which install bloomguard too."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
    subprocess.run([*pip, f"django=={django.__version__}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (tests,) = folder.glob("*/tests")
    runs = tests / "runtests.py"
    text, last = runs.read_text(), '    "django.contrib.staticfiles",\n]'
    assert text.count(last) == 1
    runs.write_text(text.replace(last, f'    "bloomguard",\n{last}'))
    return tests


def modules(tests: Path) -> Iterator[str]:
    for each in tests.iterdir():
        if (each / "__init__.py").exists() and each.name not in SKIPPED:
            yield each.name


def run(tests: Path, module: str, *, guarded: bool) -> Any:
    """Run the tests of one module, and return what ``runner`` has found.

    If the module cannot run, as without an extension of PostgreSQL, that is its one failed test.
    """
    found = tests.parent / "found.json"
    found.unlink(missing_ok=True)
    given = {"BLOOMGUARD_SITE": json.dumps(databases()), "BLOOMGUARD_FOUND": str(found)}
    options = ["--settings=tests.djangos_own.settings", "--parallel=1", "--noinput", "--verbosity=0"]
    ended = subprocess.run(
        [sys.executable, "runtests.py", *options, module],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": str(ROOT), **given, "BLOOMGUARD_GUARDED": "1" if guarded else ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if found.exists():
        return json.loads(found.read_text())
    print(f"{module} did not run: {ended.stdout.strip()[-500:]}", flush=True)
    return {"failed": [module], "faults": [], "counts": {"modules did not run": 1}}


def databases() -> dict[str, dict[str, Any]]:
    if DATABASE == "default":
        return {alias: {"ENGINE": "django.db.backends.sqlite3"} for alias in ("default", "other")}
    place = servers.postgresql()
    return {alias: {**place, "TEST": {"NAME": f"djangos_{alias}"}} for alias in ("default", "other")}


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
