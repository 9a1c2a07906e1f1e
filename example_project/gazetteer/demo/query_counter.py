"""Says in headers of every response which worker answered, and how many queries it cost the guarded tables."""

import os
import threading
from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from gazetteer.models import City, Listing

HEADER = "X-Guarded-Queries"
WORKER_HEADER = "X-Worker"
WORKER_VARIABLE = "GAZETTEER_WORKER"
TABLES = [City._meta.db_table, Listing._meta.db_table]


class Count(threading.local):
    queries = 0


count = Count()


class QueryCounterMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        # Every connection of the process, whoever opens it: a query on a private one counts too.
        connection_created.connect(watch)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        count.queries = 0
        response = self.get_response(request)
        response.headers[HEADER] = str(count.queries)
        response.headers[WORKER_HEADER] = os.environ.get(WORKER_VARIABLE, "0")
        return response


def watch(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if count_query not in connection.execute_wrappers:  # it stays when the connection is opened again
        connection.execute_wrappers.append(count_query)


def count_query(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if any(table in sql for table in TABLES):
        count.queries += 1
    return execute(sql, params, many, context)
