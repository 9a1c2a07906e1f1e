"""A site that writes before its server forks: the workers inherit the lock of the filter's file, and the connections.

``POST /40/`` creates the products 40 to 59 and answers with the worker's process ID.
"""

import os
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.db import connections

get_wsgi_application()

from tests.shop.models import Product  # noqa: E402  # needs the app registry

Product.objects.create(pk=1_000_000)
connections.close_all()  # as Django asks for; those of bloomguard stay open


def application(environ: Any, start_response: Any) -> list[bytes]:
    """Answer one request."""
    first = int(environ["PATH_INFO"].strip("/"))
    Product.objects.bulk_create([Product(pk=first + number, name="new") for number in range(20)])
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
