"""Compare the modes of one variant: ``python -m tests.transparency everything lookup route``.

``--only TEXT`` drives the combinations whose name has this text, and ``--show`` prints both answers to each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.transparency", description=__doc__)
    parser.add_argument("variant")
    parser.add_argument(
        "modes", nargs="*", help="lookup, route, auto, door, unguarded, a broken guard's name; asgi-..."
    )
    parser.add_argument("--share", type=int, default=1, help="take one of so many combinations")
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bloomguard-transparency-") as folder:
        os.environ |= {
            "TRANSPARENCY_VARIANT": options.variant,
            "TRANSPARENCY_FOLDER": folder,
            "DJANGO_SETTINGS_MODULE": "tests.transparency.settings",
        }
        found = compare(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(found))
        return
    for mode, result in found.items():
        print(mode, {name: value for name, value in result.items() if name != "differences"})
        print(*(f"  {line}" for line in result["differences"]), sep="\n")


def compare(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, object]]:
    import django

    django.setup()
    from . import harness
    from .table import combinations

    table = combinations(options.share)
    template = folder / "template.sqlite3"
    harness.prepare(template, table)
    found: dict[str, dict[str, object]] = {}
    bare: dict[bool, harness.Pass] = {}
    for mode in ["unguarded", *(options.modes or harness.MODES)]:
        is_asgi = mode.startswith("asgi-")
        chosen = [each for each in table if options.only in str(each) and (options.only or each.is_for(mode))]
        if is_asgi:  # Django itself warns of a stream there
            chosen = [each for each in chosen if each.page.name != "streamed"]
        if is_asgi not in bare:
            bare[is_asgi] = harness.run("asgi-unguarded" if is_asgi else "unguarded", chosen, table, template)
        seen = bare[False] if mode == "unguarded" and not found else harness.run(mode, chosen, table, template)
        label = mode if mode not in found else f"{mode} again"
        found[label] = {
            "combinations": len(chosen),
            "statuses": dict(sorted(Counter(a.status for each in seen.answers.values() for a in each).items())),
            "queries": seen.queries,
            "reached": seen.reached,
            "skipped": sum(name in bare[is_asgi].viewed - seen.viewed for name in seen.answers),
            "verdicts": dict(seen.verdicts),
            "differences": harness.differences(bare[is_asgi], seen),
        }
        if options.show:
            for name, answers in seen.answers.items():
                print(f"==== {name}", *answers, sep="\n---- ")
    return found


if __name__ == "__main__":
    main()
    sys.exit()
