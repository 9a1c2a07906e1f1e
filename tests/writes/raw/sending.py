"""Raw SQL, sent to the current database."""

from __future__ import annotations

import pytest
from django.db import connections

from bloomguard.state import table as state
from tests.support import database

on_sqlite = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)


def execute(sql, params=None, many=False):
    with connections[database.current].cursor() as cursor:
        return cursor.executemany(sql, params) if many else cursor.execute(sql, params)


def status(name):
    return state.table.current(name).status


INSERT = "INSERT INTO shop_product (id, name) VALUES (%s, %s)"
