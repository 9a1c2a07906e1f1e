"""Add response headers with the worker and the number of queries on the guarded tables."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from gazetteer.models import City, Listing

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

HEADER = "X-Guarded-Queries"
WORKER_HEADER = "X-Worker"
WORKER_VARIABLE = "GAZETTEER_WORKER"
TABLES = [City._meta.db_table, Listing._meta.db_table]


class Count(threading.local):
    queries = 0


count = Count()


def counted(application: Application) -> Application:
    """`application`, with the headers. It wraps Django, so it counts the same way in every mode."""
    # Every connection of the process, so that queries on a private one count too.
    connection_created.connect(watch)

    def counting(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            said = [(HEADER, str(count.queries)), (WORKER_HEADER, os.environ.get(WORKER_VARIABLE, "0"))]
            return start_response(status, [*headers, *said], *more)

        count.queries = 0
        return application(environ, start)

    return counting


def watch(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if count_query not in connection.execute_wrappers:  # it stays when the connection is reopened
        connection.execute_wrappers.append(count_query)


def count_query(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if any(table in sql for table in TABLES):
        count.queries += 1
    return execute(sql, params, many, context)
