"""The state row: the only pointer that there is to a guard's generations."""

from __future__ import annotations

from django.db import models


class GuardState(models.Model):
    """One row a guard. Every change compares and sets ``version``; see :mod:`bloomguard.sync.state`."""

    class Status(models.TextChoices):
        ARMED = "armed"
        FENCED = "fenced"

    name = models.CharField(max_length=100, primary_key=True)
    version = models.BigIntegerField(default=1)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ARMED)
    identity = models.CharField(max_length=200, default="", help_text="the store that holds the generations")
    host = models.CharField(max_length=200, default="", blank=True, help_text="the host that named the store")
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
    fenced_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, default="", blank=True, help_text="why it is fenced")

    class Meta:
        verbose_name = "guard state"
        verbose_name_plural = "guard states"

    def __str__(self) -> str:
        return self.name
