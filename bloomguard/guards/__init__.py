"""Guards: one for each kind of ID to protect, declared in an app's ``guards.py``.

``guards.py`` is discovered as ``admin.py`` is::

    @register(City)
    class CityGuard(Guard):
        lookup = "pk"
        routes = ["city-detail"]
"""

from .guard import Guard
from .options import AUTO
from .registry import register, registry

__all__ = ["AUTO", "Guard", "register", "registry"]
