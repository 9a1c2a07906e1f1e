"""The state row: the only pointer that there is to a guard's generations; and what a worker does for the admin page."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class GuardState(models.Model):
    """One row a guard. Every change compares and sets ``version`` and ``token``; see :mod:`bloomguard.sync.state`."""

    class Status(models.TextChoices):
        ARMED = "armed"
        FENCED = "fenced"

    name = models.CharField(max_length=100, primary_key=True)
    version = models.BigIntegerField(default=1)
    token = models.CharField(max_length=32, default="", blank=True, help_text="random, another with each version")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ARMED)
    identity = models.CharField(max_length=200, default="", help_text="the store that holds the generations")
    host = models.CharField(max_length=200, default="", blank=True, help_text="the host that named the store")
    database = models.CharField(
        max_length=200, default="", blank=True, help_text="the database that the generations were built from"
    )
    active = models.CharField(max_length=40, default="", blank=True, help_text="the generation that answers")
    standby = models.CharField(max_length=40, default="", blank=True, help_text="the one before, still written to")
    standby_until = models.DateTimeField(
        null=True, blank=True, help_text="kept for a roll-back; answers nobody any more"
    )
    building = models.CharField(max_length=40, default="", blank=True, help_text="the next one, written to already")
    builder = models.CharField(max_length=200, default="", blank=True, help_text="host and process that builds it")
    builder_seen_at = models.DateTimeField(null=True, blank=True)
    rows = models.BigIntegerField(default=0, help_text="rows at the last build")
    published_at = models.DateTimeField(null=True, blank=True)
    kind = models.CharField(max_length=20, default="", blank=True, help_text="the kind of filter of the last build")
    capacity = models.BigIntegerField(default=0, help_text="the rows that the last build has room for")
    bytes = models.BigIntegerField(default=0, help_text="the size of the last build")
    error_rate_measured = models.FloatField(null=True, blank=True, help_text="of the last build, before it answered")
    former_rows = models.BigIntegerField(null=True, blank=True, help_text="rows at a build some time before")
    former_published_at = models.DateTimeField(null=True, blank=True)
    mode = models.CharField(max_length=10, default="", blank=True, help_text="in place of the guard's own")
    fenced_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, default="", blank=True, help_text="why it is fenced")

    class Meta:
        verbose_name = _("guard")
        verbose_name_plural = _("guards")
        default_permissions = ("view",)
        permissions = (("operate_guardstate", _("Can rebuild, verify, fence and switch guards")),)

    def __str__(self) -> str:
        return self.name


class GuardTask(models.Model):
    """What a worker was last asked to do with a guard, and how far it is: one row a guard, for people to look at."""

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
    done = models.BigIntegerField(default=0, help_text="rows that were read")
    total = models.BigIntegerField(default=0, help_text="rows there are to read; 0 as long as nobody knows")
    seen_at = models.DateTimeField(help_text="when it was last heard of")
    outcome = models.CharField(max_length=500, default="", blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.work} {self.name}: {self.status}"
