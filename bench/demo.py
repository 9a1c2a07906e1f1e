"""The demo's figures and charts, as the pages show them: ``make bench-demo``.

Runs ``manage.py demo``, keeps its figures as ``bench/results/demo.json`` and its charts as
``docs/images/demo-light.svg`` and ``demo-dark.svg``. A demo that fails changes none of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .report import Report

ROOT = Path(__file__).parents[1]
SECONDS = "20"  # of each mode: other work on the machine comes and goes
IMAGES = ROOT / "docs" / "images"
UNITS = {"requests_per_second": "requests/s", "p50_ms": "ms", "p99_ms": "ms"}


def main() -> int:
    sys.path.insert(0, str(ROOT / "example_project"))
    from gazetteer.demo.report import INKS, MODES, SPEEDUPS_DUE

    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as name:
        folder = Path(name)
        demo = [sys.executable, ROOT / "example_project" / "manage.py", "demo"]
        if code := subprocess.run([*demo, "--seconds", SECONDS, "--report", folder], check=False).returncode:
            return code
        for ground in INKS:
            shutil.copy(folder / f"demo-report-{ground}.svg", IMAGES / f"demo-{ground}.svg")
        figures = json.loads((folder / "demo-report.json").read_text())

    report = Report("demo", "The demo: 90% of the requests are for IDs that don't exist")
    report.start()
    for mode, title in MODES.items():
        for name, value in figures["modes"][mode].items():
            report.add(f"{title}: {name}", value, UNITS.get(name, ""), at_most=0 if name == "false_404s" else None)
    unguarded = figures["modes"]["unguarded"]["requests_per_second"]
    for mode, due in SPEEDUPS_DUE.items():
        rate = figures["modes"][mode]["requests_per_second"] / unguarded
        report.add(MODES[mode], rate, against="unguarded requests/s", at_least=due)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
