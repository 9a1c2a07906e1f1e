"""What a view may demand before it looks anything up: a 404 ahead of that would tell strangers which IDs exist.

Seen are ``LoginRequiredMiddleware``, the decorators of ``django.contrib.auth`` on a view, on its class and on its
methods, the mixins of ``django.contrib.auth``, and REST framework's permissions. A decorator of the project's own that
is built on none of these looks like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.module_loading import import_string

#: REST framework's permissions that let everybody read.
_OPEN = frozenset({"AllowAny", "IsAuthenticatedOrReadOnly", "DjangoModelPermissionsOrAnonReadOnly"})


class Demand(NamedTuple):
    """What a view demands, in words, and whether somebody who is logged in has met it.

    ``by_middleware`` says that it is not the view that asks, but ``LoginRequiredMiddleware`` ahead of it.
    """

    reason: str
    login_is_enough: bool = False
    by_middleware: bool = False


def demand(view: Callable[..., Any]) -> Demand | None:
    """What ``view`` demands of who asks; ``None`` if nothing is known of it."""
    found = _demand_of_view(view)
    if getattr(view, "login_required", True) and _is_login_required_everywhere():
        return Demand("LoginRequiredMiddleware demands a login", found is None or found.login_is_enough, True)
    return found


def _demand_of_view(view: Callable[..., Any]) -> Demand | None:
    if any(hasattr(layer, "redirect_field_name") for layer in layers(view)):
        return Demand("a decorator of django.contrib.auth demands something of the user")
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if cls is None:
        return None
    for base in cls.__mro__:
        for handler in ("setup", "dispatch", "get", "head"):
            if hasattr(base.__dict__.get(handler), "redirect_field_name"):
                return Demand(f"a decorator on {base.__name__}.{handler} demands something of the user")
    mixins = [base.__name__ for base in cls.__mro__ if base.__module__ == "django.contrib.auth.mixins"]
    if mixins:
        return Demand(f"{mixins[0]} demands something of the user", mixins == ["LoginRequiredMixin", "AccessMixin"])
    return _permissions(view, cls)


def _permissions(view: Callable[..., Any], cls: type) -> Demand | None:
    given = {**getattr(view, "initkwargs", {}), **getattr(view, "view_initkwargs", {})}
    classes = given.get("permission_classes", getattr(cls, "permission_classes", ()))
    method = getattr(cls, "get_permissions", None)
    if method is not None and not method.__module__.startswith("rest_framework."):
        return Demand(f"{cls.__name__}.get_permissions may demand something of the user")
    for permission in classes:
        module, name = getattr(permission, "__module__", ""), getattr(permission, "__name__", type(permission).__name__)
        if module != "rest_framework.permissions" or name not in _OPEN:
            return Demand(f"{name} demands something of the user")
    return None


def layers(view: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """``view`` and, as far as its decorators tell, what they decorate."""
    layer: Any = view
    while layer is not None:
        yield layer
        layer = getattr(layer, "__dict__", {}).get("__wrapped__")


def _is_login_required_everywhere() -> bool:
    for path in settings.MIDDLEWARE:
        try:
            middleware = import_string(path)
        except ImportError:  # Django says so itself
            continue
        if inspect.isclass(middleware) and any(
            (base.__module__, base.__name__) == ("django.contrib.auth.middleware", "LoginRequiredMiddleware")
            for base in middleware.__mro__
        ):
            return True
    return False
