"""Rows that another app's ``ready()`` writes before bloomguard's are in the filter, or the guard is fenced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import row as rows
from bloomguard.state.table import EXPIRY_SECONDS, table
from bloomguard.writes import raw_fences
from bloomguard.writes.sql.statement import Effect
from tests.support.processes import spawn

SITE = """
import sys, types
from pathlib import Path

folder = Path(sys.argv[1])
step, where = sys.argv[2], sys.argv[3]

import django
from django.apps import AppConfig
from django.conf import settings


class EarlyConfig(AppConfig):
    name = label = "early"
    path = str(folder)

    def import_models(self):
        from django.db import models

        class Plan(models.Model):
            slug = models.CharField(max_length=20, unique=True)

            class Meta:
                app_label = "early"

        early.Plan = Plan
        super().import_models()

    def ready(self):
        if step == "write":
            early.Plan.objects.get_or_create(slug="free")
        if step == "script":
            from django.db import connection

            with connection.cursor() as cursor:
                cursor.executescript("INSERT INTO early_plan (slug) VALUES ('free');")
        if step == "write another":
            from django.contrib.contenttypes.models import ContentType

            ContentType.objects.create(app_label="early", model="another")


def declare():
    from django.contrib.contenttypes.models import ContentType

    from bloomguard.guards import Guard, register

    @register(ContentType)
    class AnotherGuard(Guard):
        pass

    if where == "not at all":
        return

    @register(early.Plan)
    class PlanGuard(Guard):
        lookup = "slug"


early = sys.modules["early"] = types.ModuleType("early")
early.__path__ = [str(folder / "early")]
EarlyConfig.__module__ = "early.apps"
apps = sys.modules["early.apps"] = types.ModuleType("early.apps")
apps.EarlyConfig = EarlyConfig
(folder / "early").mkdir(exist_ok=True)
source = "import __main__; __main__.declare()" if where in ("guards.py", "not at all") else ""
if where == "late guards.py":
    source = "import __main__; assert __main__.is_our_turn(), 'not yet'; __main__.declare()"
(folder / "early" / "guards.py").write_text(source)


def is_our_turn():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "bloomguard.apps" and frame.f_code.co_name == "ready":
            return True
        frame = frame.f_back
    return False


settings.configure(
    SECRET_KEY="for a test", BASE_DIR=folder, USE_TZ=True,
    INSTALLED_APPS=["django.contrib.contenttypes", "early.apps.EarlyConfig", "bloomguard"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"}},
    BLOOMGUARD={"STORES": {"default": {
        "BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": folder / "filters"}}}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", LOGGING_CONFIG=None,
)
django.setup()
if where == "elsewhere":
    declare()
from bloomguard.guards import registry
if step == "write another":
    early.Plan.objects.get_or_create(slug="free")
if where == "not at all":
    sys.exit()
if step == "build":
    from django.core.management import call_command
    from django.db import connection
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(early.Plan)
    early.Plan.objects.create(slug="paid")
    call_command("rebuild_filter", verbosity=0)
for value in ("free", "paid", "none"):
    decision = registry["plan"]._runtime.decide(value)
    print(value, decision.verdict.name, decision.reason)
"""


def run(folder: Path, step: str, where: str) -> list[str]:
    """What a process that starts says of three plans."""
    root = Path(__file__).resolve().parents[2]
    child = spawn(
        [sys.executable, "-W", "ignore", "-c", SITE, str(folder), step, where],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return out.splitlines()


ARMED = ["free MAYBE maybe", "paid MAYBE maybe", "none ABSENT absent"]
FENCED = [f"{value} UNKNOWN fenced" for value in ("free", "paid", "none")]


@pytest.mark.parametrize(("where", "after"), [("guards.py", ARMED), ("late guards.py", FENCED), ("elsewhere", FENCED)])
def test_a_row_that_another_app_writes_first_is_never_absent(tmp_path, where, after):
    """The guards are looked for when it writes; one that cannot be imported then, or is elsewhere, is fenced."""
    assert run(tmp_path, "build", where) == ["free ABSENT absent", "paid MAYBE maybe", "none ABSENT absent"]

    assert run(tmp_path, "write", where) == after


@pytest.mark.parametrize("where", ["guards.py", "late guards.py", "elsewhere"])
def test_a_script_that_another_app_runs_first_fences(tmp_path, where):
    """SQLite's ``executescript`` calls no wrapper of Django's."""
    run(tmp_path, "build", where)

    assert run(tmp_path, "script", where) == FENCED


@pytest.mark.parametrize("step", ["write", "write another"])
def test_a_guard_that_the_process_does_not_have_is_fenced(tmp_path, step):
    """Also if the state rows were read while the apps were not ready yet."""
    run(tmp_path, "build", "guards.py")
    run(tmp_path, step, "not at all")

    assert run(tmp_path, "ask", "guards.py") == FENCED


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_the_fences_of_several_guards_are_waited_for_once(fresh, clock, monkeypatch):
    """A process that starts does not wait for one guard after the other."""
    names = ["product", "order", "article"]
    for name in names:
        Rebuild(registry[name], sleep=clock.sleep).run()
    written = [("default", frozenset({Effect("insert", f"shop_{name}")}), frozenset()) for name in names]
    monkeypatch.setattr(raw_fences, "_early", written)
    began = clock.now

    raw_fences._fence_early()

    assert [table.current(name).status for name in names] == [rows.FENCED] * 3
    assert clock.now - began <= EXPIRY_SECONDS
