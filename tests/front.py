"""The sites of ``tests.door.site``, by the name that other tests still use."""

from tests.door.site import Asgi, Wsgi

__all__ = ["Asgi", "Wsgi"]
