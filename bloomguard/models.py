"""The state rows, which alone point to the guards' generations, and the tasks of the admin page's workers."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models, router
from django.dispatch import Signal
from django.utils.translation import gettext_lazy as _

if not apps.is_installed("bloomguard"):  # else Django asks for an app_label
    raise ImproperlyConfigured("bloomguard is imported, but INSTALLED_APPS has no 'bloomguard'")

#: Sent before state rows are deleted, before the transaction of the DELETE, with their ``names`` and ``using``.
deleting = Signal()


class _States(models.QuerySet["GuardState"]):
    def delete(self) -> tuple[int, dict[str, int]]:
        rows: Any = self.all()
        rows._for_write = True  # where the DELETE goes; the router may send reads to a replica
        deleting.send(GuardState, names=list(rows.values_list("name", flat=True)), using=rows.db)
        return super().delete()

    delete.queryset_only = True  # type: ignore[attr-defined]  # as Django's: `objects.delete()` must not exist


class GuardState(models.Model):
    """The state of one guard: which generation answers for it, in which store.

    Projects may read the rows, and delete those of guards that are gone; these are fenced first, which takes two
    seconds. On SQLite the row of a guard in use cannot be deleted inside a transaction. Only bloomguard may change the
    rows. To disable a guard use ``manage.py switch_guards``.
    """

    class Status(models.TextChoices):
        ARMED = "armed"
        FENCED = "fenced"

    name = models.CharField(max_length=100, primary_key=True)
    version = models.BigIntegerField(default=1)
    token = models.CharField(max_length=32, default="", blank=True, help_text="random; a new one for each version")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ARMED)
    identity = models.CharField(max_length=200, default="", help_text="the store that holds the generations")
    host = models.CharField(max_length=200, default="", blank=True, help_text="the host that set the identity")
    database = models.CharField(
        max_length=200, default="", blank=True, help_text="the database that the generations were built from"
    )
    source = models.CharField(
        max_length=400, default="", blank=True, help_text="the database alias and the schema that they were built from"
    )
    tables = models.CharField(
        max_length=2000, default="", blank=True, help_text="whose writes can make keys, one a line"
    )
    definition = models.CharField(
        max_length=32, default="", blank=True, help_text="hash of what a key means, in the version that built them"
    )
    active = models.CharField(max_length=40, default="", blank=True, help_text="the active generation")
    standby = models.CharField(
        max_length=40, default="", blank=True, help_text="the previous generation, still written to"
    )
    standby_until = models.DateTimeField(
        null=True, blank=True, help_text="the previous generation is kept for a roll-back until then"
    )
    building = models.CharField(
        max_length=40, default="", blank=True, help_text="the generation being built, written to already"
    )
    builder = models.CharField(max_length=200, default="", blank=True, help_text="the host and process that build it")
    builder_seen_at = models.DateTimeField(null=True, blank=True)
    rows = models.BigIntegerField(default=0, help_text="number of rows at the last build")
    published_at = models.DateTimeField(null=True, blank=True)
    kind = models.CharField(max_length=20, default="", blank=True, help_text="the kind of filter of the last build")
    capacity = models.BigIntegerField(default=0, help_text="number of rows that the last build has room for")
    bytes = models.BigIntegerField(default=0, help_text="size of the last build in bytes")
    error_rate_measured = models.FloatField(
        null=True, blank=True, help_text="of the last build, measured before it was published"
    )
    former_rows = models.BigIntegerField(null=True, blank=True, help_text="number of rows at an earlier build")
    former_published_at = models.DateTimeField(null=True, blank=True)
    mode = models.CharField(max_length=10, default="", blank=True, help_text="overrides the guard's mode")
    fenced_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, default="", blank=True, help_text="why it is fenced")

    objects = _States.as_manager()

    class Meta:
        verbose_name = _("guard")
        verbose_name_plural = _("guards")
        default_permissions = ("view",)
        permissions = (("operate_guardstate", _("Can rebuild, verify, fence and switch guards")),)

    def __str__(self) -> str:
        return self.name

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Fence the guard, wait until every process knows, and delete the row."""
        deleting.send(GuardState, names=[self.name], using=using or router.db_for_write(GuardState, instance=self))
        return super().delete(using, keep_parents)


class GuardTask(models.Model):
    """The last task that a worker got for a guard, and its progress: one row per guard, shown on the admin page."""

    class Work(models.TextChoices):
        REBUILD = "rebuild", _("Rebuild")
        VERIFY = "verify", _("Verify")

    class Status(models.TextChoices):
        QUEUED = "queued", _("waiting for a worker")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    name = models.CharField(max_length=100, primary_key=True)
    work = models.CharField(max_length=10, choices=Work.choices)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.QUEUED)
    done = models.BigIntegerField(default=0, help_text="number of rows read so far")
    total = models.BigIntegerField(default=0, help_text="number of rows to read; 0 if not known yet")
    seen_at = models.DateTimeField(help_text="when the task was last updated")
    outcome = models.CharField(max_length=500, default="", blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.work} {self.name}: {self.status}"
