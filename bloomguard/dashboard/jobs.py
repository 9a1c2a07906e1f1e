"""The task that workers run by Django's task framework.

A module of its own: it is imported only when work is queued or run, because a wrong ``TASKS`` makes the import fail.
"""

from __future__ import annotations

from .tasks import run

try:
    from django.tasks import task
except ImportError:  # Django 5.2 has no task framework
    pass
else:

    @task
    def work(what: str, names: list[str], user_pk: str) -> None:
        """Rebuild or verify the named guards for the user who requested it on the admin page."""
        run(what, names, user_pk)
