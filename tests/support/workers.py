"""A backend of Django's task framework whose worker is called by the test: ``Workers.work()``."""

from __future__ import annotations

from typing import Any, ClassVar

from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskResult, TaskResultStatus
from django.utils import timezone
from django.utils.module_loading import import_string


class Workers(BaseTaskBackend):
    """Keeps what is enqueued as a broker does: the task's path and its arguments."""

    waiting: ClassVar[list[tuple[str, list[Any]]]] = []

    def enqueue(self, task, args, kwargs):
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="1",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        self.waiting.append((task.module_path, result.args))
        return result

    @classmethod
    def work(cls) -> None:
        """Do what waits, as a worker that knows nothing but paths and arguments."""
        while cls.waiting:
            path, args = cls.waiting.pop(0)
            import_string(path).call(*args)
