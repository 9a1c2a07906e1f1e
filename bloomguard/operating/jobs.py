"""What workers import: a task of Django's task framework."""

from __future__ import annotations

from .tasks import run

try:
    from django.tasks import task
except ImportError:  # Django 5.2, which has no workers either
    pass
else:

    @task
    def work(what: str, names: list[str], user_pk: str) -> None:
        """Rebuild or verify the guards named, for the user who asked for it on the admin page."""
        run(what, names, user_pk)
