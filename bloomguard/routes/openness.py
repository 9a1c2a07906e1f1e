"""Decide whether a guard may answer before the view runs: whether the route is *open*.

A route is open if no login, permission, redirect or fallback of the project can run before the view's query. Code that
this module does not recognize makes the route *closed*: the view runs, and the guard answers at the view's query, where
the response is the view's own. ``Guard.public`` overrides the decision.

Middleware matters, too: the second part finds the position of ``BloomGuardMiddleware``, and which other middleware may
answer in place of the view.
"""

from __future__ import annotations

import re
import types
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any

from django.conf import settings
from django.db.models.base import ModelBase
from django.middleware.cache import CacheMiddleware, FetchFromCacheMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.gzip import GZipMiddleware
from django.middleware.http import ConditionalGetMiddleware
from django.utils.datastructures import OrderedSet
from django.utils.module_loading import import_string
from django.views.decorators import cache as caching
from django.views.decorators import clickjacking, common, csrf, debug, http, vary
from django.views.generic.base import View
from django.views.generic.detail import BaseDetailView
from django.views.generic.edit import BaseUpdateView

from ..guards import Guard
from ..guards.conditions import CONSTANTS

#: Methods of Django's generic views that run only for requests other than GET and HEAD.
_OF_OTHER_REQUESTS = frozenset(
    {"form_valid", "form_invalid", "post", "put", "delete", "options", "http_method_not_allowed"}
)
_SAFE = frozenset({"GET", "HEAD"})
#: Methods that also run for GET and HEAD, after the object was found: if ``get`` looks it up first.
_AFTER_LOOKUP = _OF_OTHER_REQUESTS | {
    *("get_context_data", "get_context_object_name", "get_template_names", "render_to_response"),
    *("get_form", "get_form_class", "get_form_kwargs", "get_initial", "get_prefix", "get_success_url"),
}
#: The ``get`` methods of Django's generic views that begin with ``get_object()``.
_LOOKING_UP = (BaseDetailView.get, BaseUpdateView.get)
#: Attributes of a view that ``View.setup`` sets for each request, and the method that it calls.
_OF_THE_REQUEST = frozenset({"request", "args", "kwargs", "head", "get"})
#: Attributes that every class has, or that Python or type annotations add to a class.
OF_EVERY_CLASS = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
        *("__annotations_cache__", "__dict__", "__weakref__", "__parameters__", "__orig_bases__", "__slots__"),
        *("__firstlineno__", "__static_attributes__", "__classcell__", "__classdictcell__", "__type_params__"),
    }
)
#: Middleware whose decorators pass a GET or HEAD request for an absent row to the view, and its ``Http404`` back.
_HARMLESS_MIDDLEWARE = (CacheMiddleware, ConditionalGetMiddleware, GZipMiddleware)


def why_closed(guard: Guard, view: Callable[..., Any]) -> str:
    """Return why ``guard`` must not answer before ``view`` runs; empty if it may."""
    if guard.public is False:
        return "public = False"
    if is_rest_framework(view):
        return "REST framework renders its own 404"
    if guard.public:
        return ""
    if guard.scope is not None:
        return f"the {guard.scope} that the view reads is certain at its query"
    if guard._meta.keys.own_field:
        return f"{guard._meta.keys.own_field} converts values with the project's own code"
    if reason := why_middleware_closes(view):
        return reason
    *decorators, innermost = layers(view)
    for layer in decorators:
        if not _is_harmless(layer):
            return f"an unknown decorator runs first{_where(layer)}"
    if not isinstance(innermost, types.FunctionType):
        return f"it is an instance of {type(innermost).__name__}, neither a function nor a class-based view"
    if is_class_based(innermost):
        return why_view_is_closed(innermost)
    if not _holds_constants(innermost):
        return f"it closes over an object that may check the request{_where(innermost)}"
    return ""


def _holds_constants(function: Any) -> bool:
    """Whether the function closes over constants alone: a decorator without ``wraps`` closes over the view."""
    held = [*_closure(function).values(), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return all(map(is_constant, held))


def is_constant(value: Any) -> bool:
    """Whether ``value`` is plain data or a model: a function can only compare it, format it or use it in a query.

    Its type decides: a lazy object would be evaluated to say of which class it is.
    """
    kind = type(value)
    if issubclass(kind, (tuple, list, set, frozenset, OrderedSet)):
        return all(map(is_constant, value))
    if kind is dict:
        return all(map(is_constant, value.values()))
    return issubclass(kind, (*CONSTANTS, re.Pattern, ModelBase, types.NoneType))


def is_class_based(view: Any) -> bool:
    """Whether ``view`` is what ``as_view()`` of Django's own returns."""
    return isinstance(view, types.FunctionType) and view.__code__ is View.as_view().__code__


def why_view_is_closed(view: Any) -> str:
    """Return why code of the project may run before a generic view looks up its object; empty if none can."""
    cls = view.view_class
    for name, value in view.view_initkwargs.items():
        if _is_code(value) or _is_code(getattr(cls, name, None)):
            return f"as_view({name}=...) passes a function of the project"
    if type(cls) not in (type, ABCMeta):
        return f"{type(cls).__name__}, the metaclass of {cls.__name__}, runs first"
    djangos = [base for base in cls.__mro__ if base.__module__.startswith("django.views.generic.")]
    later = _AFTER_LOOKUP if looks_up_first(cls) else _OF_OTHER_REQUESTS
    for base in cls.__mro__[:-1]:
        if base in djangos:
            continue
        for name, value in vars(base).items():
            if name in later or name in OF_EVERY_CLASS:
                continue
            # Only the methods checked here can call a method of another name; a property may need the request. A `get`
            # of the project's may be under any decorator, or check who asks before it calls that of its base.
            replaced = [vars(each)[name] for each in djangos if name in vars(each)]
            if name == "get" and base is cls and not replaced and _is_bare(value):
                continue
            is_djangos = replaced or name in _OF_THE_REQUEST or name.startswith("__")
            if is_djangos and (_is_code(value) or any(map(_is_code, replaced))):
                return f"{base.__name__}.{name} runs first"
    return ""


def _is_bare(method: Any) -> bool:
    """Whether it is a function like one that is a view itself: under no decorator, and it does not call ``super()``."""
    return isinstance(method, types.FunctionType) and not hasattr(method, "__wrapped__") and _holds_constants(method)


def looks_up_first(cls: type[View]) -> bool:
    """Whether a GET begins with ``get_object()``: ``get`` is that of Django's ``DetailView`` or ``UpdateView``."""
    return getattr(cls, "get", None) in _LOOKING_UP


def _is_code(value: Any) -> bool:
    """Whether an attribute of a class is a method, a property or the like; a class is only a value."""
    kind = type(value)  # which also a lazy object has without being evaluated
    return (hasattr(kind, "__get__") or callable(value)) and not issubclass(kind, type)


def view_class_of(view: Any) -> type | None:
    """Return the class of a class-based view of Django or REST framework; ``None`` for any other view."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return cls if isinstance(cls, type) else None


def guarded_views(view: Any) -> Iterator[Any]:
    """Yield ``view``, or the methods of its class that it may call, if it is under ``@guarded``."""
    cls = view_class_of(view)
    mro = cls.__mro__ if cls is not None else ()
    methods = {name: value for base in reversed(mro) for name, value in vars(base).items()}
    if isinstance(actions := getattr(view, "actions", None), dict):  # of a viewset: its others have their own routes
        called = (*actions.values(), "dispatch")
        methods = {name: value for name, value in methods.items() if name in called}
    functions = [value for value in methods.values() if type(value) is types.FunctionType]  # asks no lazy object
    yield from (each for each in (view, *functions) if getattr(each, "guarded_by", ""))


def is_rest_framework(view: Any) -> bool:
    """Whether ``view`` belongs to REST framework, whose 404 has the format that the client accepts."""
    cls = getattr(view, "cls", None)
    return isinstance(cls, type) and any(base.__module__ == "rest_framework.views" for base in cls.__mro__)


def is_admin(view: Any) -> bool:
    """Whether ``view`` belongs to Django's admin."""
    if hasattr(view, "model_admin") or hasattr(view, "admin_site"):
        return True
    owners = [type(getattr(layer, "__self__", None)) for layer in layers(view)]
    return any(base.__module__.startswith("django.contrib.admin.") for owner in owners for base in owner.__mro__)


def allowed_methods(view: Any) -> frozenset[str] | None:
    """Return the HTTP methods that the class and the decorators of ``view`` allow; ``None`` if they set no limit.

    Those other than GET and HEAD are for ``csrf_protect`` to look at first, or for code of a class before its lookup.
    """
    limits: list[frozenset[str]] = []
    *decorators, innermost = layers(view)
    for layer in decorators:
        if isinstance(layer, types.FunctionType) and layer.__code__ in _FROM_MIDDLEWARE:
            limits.append(_SAFE)
        if _is_harmless(layer) and (methods := _closure(layer).get("request_method_list")) is not None:
            limits.append(frozenset(methods))
    cls = getattr(innermost, "view_class", None)
    if isinstance(cls, type) and issubclass(cls, View):
        given = getattr(innermost, "view_initkwargs", {}).get("http_method_names", cls.http_method_names)
        names = {"get", "head"} if hasattr(cls, "get") else {"head"} if hasattr(cls, "head") else set()
        limits.append(frozenset(name.upper() for name in names.intersection(given)))
    return frozenset.intersection(*limits) if limits else None


def layers(view: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield ``view`` and each function in its chain of ``__wrapped__``: the innermost one, the view itself, is last."""
    layer: Any = view
    seen = set[int]()  # `wraps(view)(view)` makes a ring
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        own = getattr(layer, "__dict__", {})
        dispatch = getattr(own.get("view_class") or own.get("cls"), "dispatch", None)
        layer = own.get("__wrapped__")
        if layer is not None and layer in (dispatch, getattr(dispatch, "__wrapped__", None)):
            return  # `as_view` copies the attributes of a decorated `dispatch`


def _wrapper_code(*decorators: Any) -> frozenset[types.CodeType]:
    """Return the code objects of the decorators' wrappers: ``wraps`` hides their names, but not their code."""

    def view(request: Any) -> Any: ...

    async def aview(request: Any) -> Any: ...

    return frozenset(decorator(each).__code__ for decorator in decorators for each in (view, aview))


#: Of Django's harmless decorators.
_HARMLESS = _wrapper_code(
    caching.cache_control(private=True),
    caching.never_cache,
    vary.vary_on_headers("Accept"),
    csrf.csrf_exempt,
    clickjacking.xframe_options_deny,
    clickjacking.xframe_options_sameorigin,
    clickjacking.xframe_options_exempt,
    common.no_append_slash,
    debug.sensitive_post_parameters(),
    http.require_http_methods(["GET"]),
)
#: Of the decorators that Django makes from middleware.
_FROM_MIDDLEWARE = _wrapper_code(csrf.csrf_protect)


def _is_harmless(layer: Any) -> bool:
    if not isinstance(layer, types.FunctionType) or layer.__code__ not in _HARMLESS | _FROM_MIDDLEWARE:
        return False
    called = _closure(layer)
    # `__wrapped__` may not be the view that is called: `AdminSite.admin_view` hides its login check like this.
    if not any(each is vars(layer)["__wrapped__"] for each in called.values()):
        return False
    if layer.__code__ in _HARMLESS:
        return True
    inner = called["_pre_process_request"]
    middleware = type(_closure(inner)["middleware"])
    if middleware is CsrfViewMiddleware:
        # It may read the session: then the response varies with the cookie. Without the middleware of the site, it
        # alone reads the visitor's cookie, and a form in the 404 page has the token of that.
        return not settings.CSRF_USE_SESSIONS and CsrfViewMiddleware in middleware_classes()
    return middleware in _HARMLESS_MIDDLEWARE


def _closure(function: Any) -> dict[str, Any]:
    """Return the variables that ``function`` closes over; for one without a value, which may get one, its cell."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it was deleted, as at the end of `except ... as error`, or is not assigned yet
            found[name] = cell
    return found


def _where(layer: Any) -> str:
    code = getattr(layer, "__code__", None)
    module = getattr(layer, "__globals__", {}).get("__name__", "")
    return f" ({module}, line {code.co_firstlineno})" if code is not None else ""


# -- the place of ``BloomGuardMiddleware``, and what the middleware beside it lets a guard do

#: The position of ``BloomGuardMiddleware`` in ``MIDDLEWARE``, which determines when it may answer for routes.
LAST, BEFORE_CACHE, ELSEWHERE, MISSING = "last", "before the cache", "elsewhere", "missing"
_LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
#: Middleware whose ``process_view`` lets Django call each view for which a guard may answer, with what the path says,
#: and whose ``process_exception`` answers no ``Http404``. Any other may do anything.
_PASSING_MIDDLEWARE = frozenset(
    {
        "allauth.account.middleware.AccountMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django_prometheus.middleware.PrometheusAfterMiddleware",
        "django_ratelimit.middleware.RatelimitMiddleware",
        "elasticapm.contrib.django.middleware.TracingMiddleware",
        "opentelemetry.instrumentation.django.middleware.otel_middleware._DjangoMiddleware",
        "scout_apm.django.middleware.ViewTimingMiddleware",
        "social_django.middleware.SocialAuthExceptionMiddleware",
        _LOGIN_REQUIRED,  # a route that demands a login is closed anyway
    }
)


def middleware_classes() -> list[Any]:
    """Return the classes in ``MIDDLEWARE``, with ``None`` for those that cannot be imported: Django reports them."""
    found: list[Any] = []
    for path in settings.MIDDLEWARE:
        try:
            found.append(import_string(path))
        except ImportError:
            found.append(None)
    return found


def guards_number() -> int | None:
    """Return the number of ``BloomGuardMiddleware`` in ``MIDDLEWARE``, from 0 on; ``None`` if it is not there."""
    return next((number for number, each in enumerate(middleware_classes()) if _is_bloomguards(each)), None)


def _is_bloomguards(middleware: Any) -> bool:
    # By name: the middleware imports this module.
    return any(base.__module__ == "bloomguard.middleware" for base in getattr(middleware, "__mro__", ()))


def guards_place() -> str:
    """Return the position of ``BloomGuardMiddleware``. Middleware after it has not processed the request yet."""
    number = guards_number()
    if number is None:
        return MISSING
    classes = middleware_classes()
    after = classes[number + 1 :]
    if not after:
        return LAST
    is_cache = len(after) == 1 and isinstance(after[0], type) and issubclass(after[0], FetchFromCacheMiddleware)
    return BEFORE_CACHE if is_cache and may_skip_views(classes[:number]) else ELSEWHERE


def may_skip_views(classes: list[Any]) -> bool:
    """Whether a guard behind these may answer before the cache, when none of their ``process_view`` has run yet."""
    return all(not hasattr(each, "process_view") or _name_of(each) in _PASSING_MIDDLEWARE for each in classes)


def are_passing(handler: Any, hooks: str) -> bool:
    """Whether all middleware in a list of Django's ``handler`` lets a guard answer before the view.

    ``hooks`` is the name of the list: ``_view_middleware`` or ``_exception_middleware``. Unknown middleware may give
    the view another ID, or answer its ``Http404``; without a list nothing is known. The classes in ``MIDDLEWARE`` lack
    what a factory function makes, or what ``__init__`` sets.
    """
    found = getattr(handler, hooks, None)
    if found is None:
        return False
    for hook in found:
        owner = type(getattr(hook, "__self__", None))  # Django and packages that trace wrap it
        name = _name_of(hook if owner is types.NoneType else owner).partition(".<locals>")[0]
        if name not in _PASSING_MIDDLEWARE and not _is_bloomguards(owner):
            return False
    return True


def _name_of(middleware: Any) -> str:
    return f"{getattr(middleware, '__module__', '')}.{getattr(middleware, '__qualname__', '')}"


def why_middleware_closes(view: Any) -> str:
    """Return which middleware may demand a login, or may answer an ``Http404`` of the view; empty if none does."""
    for path, middleware in zip(settings.MIDDLEWARE, middleware_classes()):
        names = map(_name_of, getattr(middleware, "__mro__", ()))
        if _LOGIN_REQUIRED in names and getattr(view, "login_required", True):
            return "LoginRequiredMiddleware demands a login"
        if hasattr(middleware, "process_exception") and _name_of(middleware) not in _PASSING_MIDDLEWARE:
            return f"{path} has a process_exception, which may answer an Http404"
    return ""
