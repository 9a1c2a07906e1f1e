"""Small middlewares as projects write them, each in every style that Django takes, for stacks that are drawn at random.

``NAMES`` are the behaviours, ``HOOKS`` classes with one hook of the old style. Each is named in ``MIDDLEWARE`` by the
style too: ``tests.door.stack_middlewares.counts_sync``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import (
    Http404,
    HttpResponse,
    HttpResponseForbidden,
    HttpResponseNotFound,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.utils.cache import patch_vary_headers
from django.utils.decorators import async_only_middleware, sync_and_async_middleware, sync_only_middleware
from django.utils.deprecation import MiddlewareMixin

from tests.shop.models import Product

#: What the hooks saw of the requests of one run.
log: list[tuple[Any, ...]] = []
#: The URLconf of :func:`_other_urls`.
other_urls: list[Any] = []
_numbers = count()


def forget() -> None:
    """Begin a run: nothing was counted or seen."""
    global _numbers
    log.clear()
    _numbers = count()


# -- before the view: each may answer, or change the request


def _redirects_legacy(request):
    return HttpResponseRedirect("/a0/2/") if request.path_info.endswith("/9999/") else None


def _blocks_scripts(request):
    return HttpResponseForbidden("no scripts") if request.headers.get("X-Requested-With") else None


def _is_closed_by_query(request):
    return HttpResponse("closed", status=410) if "page" in request.GET else None


def _is_hidden_from_strangers(request):
    return None if request.META.get("REMOTE_ADDR", "").startswith("10.") else HttpResponseNotFound("nothing here")


def _moves_old_paths(request):
    if request.path_info.startswith("/old/"):
        request.path_info = request.path_info[4:]


def _other_urls(request):
    if request.headers.get("X-Site") == "other":
        request.urlconf = other_urls[0]


def _overrides_method(request):
    if given := request.headers.get("X-Method"):
        request.method = given


def _raises_404(request):
    if request.GET.get("q") == "404":
        raise Http404("not here")


def _raises_403(request):
    if request.headers.get("User-Agent") == "bad":
        raise PermissionDenied


def _raises_400(request):
    if "next" in request.GET:
        raise SuspiciousOperation("odd")


def _drops_cookies(request):
    request.COOKIES.clear()


def _knows_visitors(request):
    request.visitor = "known" if request.COOKIES else "new"


# -- after the view: each may change the response, or replace it


def _counts(request, response):
    response["X-Count"] = str(next(_numbers))


def _status(request, response):
    response["X-Status"] = f"{response.status_code} {response.reason_phrase} {type(response).__name__}"


def _cookie_if_found(request, response):
    if response.status_code == 200:
        response.set_cookie("found", "yes")


def _cookie_if_absent(request, response):
    if response.status_code == 404:
        response.set_cookie("absent", "yes")


def _view_name(request, response):
    match = request.resolver_match
    response["X-View"] = "none" if match is None else f"{match.view_name} {match.captured_kwargs}"


def _moves_absent(request, response):
    return HttpResponseRedirect("/elsewhere/") if response.status_code == 404 else None


def _own_absent(request, response):
    return HttpResponseNotFound(f"<p>no {len(response.content)}</p>" * 20) if response.status_code == 404 else None


def _finds_absent(request, response):
    return HttpResponse("a page for all") if response.status_code == 404 else None


def _gone(request, response):
    if response.status_code == 404:
        response.status_code = 410


def _fallback(request, response):
    if response.status_code == 404 and Product.objects.filter(name=request.path_info).exists():
        return HttpResponse("a flat page")
    return None


def _fails_on_absent(request, response):
    if response.status_code == 404 and request.method == "HEAD":
        raise ValueError("the middleware fails")


def _footer(request, response):
    if not response.streaming and not response.has_header("Content-Encoding"):
        response.content += b"<!-- footer -->"
        response.headers.pop("Content-Length", None)


def _streams(request, response):
    if response.streaming or response.status_code != 404:
        return None
    return StreamingHttpResponse(iter([response.content]), status=404)


def _nonce(request, response):
    nonce = secrets.token_urlsafe(16)
    response["Content-Security-Policy"] = f"script-src 'nonce-{nonce}'"
    if not response.streaming and not response.has_header("Content-Encoding"):
        response.content += f"<script nonce={nonce}>".encode()


def _varies(request, response):
    patch_vary_headers(response, ["Accept", "X-Site"])


def _by_accept(request, response):
    patch_vary_headers(response, ["Accept"])
    response["X-Kind"] = request.headers.get("Accept", "")[:9]


def _by_cookie(request, response):
    response["X-Known"] = str(bool(request.COOKIES))


def _by_query(request, response):
    response["X-Query"] = str(len(request.GET))


def _by_host(request, response):
    response["X-Host"] = request.headers.get("Host", "")


def _by_scheme(request, response):
    response["X-Scheme"] = str(request.scheme)


def _by_path(request, response):
    response["X-Path"] = request.path[:3]


def _by_method(request, response):
    response["X-Method"] = str(request.method)


def _by_user(request, response):
    response["X-User"] = str(request.user.is_authenticated)


def _basket(request, response):
    if "basket" in request.session:
        request.session["basket"] += 1
        response["X-Basket"] = str(request.session["basket"])


def _remembers_absent(request, response):
    if response.status_code == 404:
        request.session["absent"] = request.path


def _may_be_cached(request, response):
    response.headers.setdefault("Cache-Control", "max-age=300")


def _must_not_be_cached(request, response):
    response["Cache-Control"] = "private"


def _plain(request, response):
    for name in ("Vary", "X-Frame-Options"):
        response.headers.pop(name, None)


def _logs(request, response):
    length = None if response.streaming else len(response.content)
    match = request.resolver_match
    log.append(("response", request.path, request.method, response.status_code, length, match and match.view_name))


BEFORE = {
    "redirects_legacy": _redirects_legacy,
    "blocks_scripts": _blocks_scripts,
    "is_closed_by_query": _is_closed_by_query,
    "is_hidden_from_strangers": _is_hidden_from_strangers,
    "moves_old_paths": _moves_old_paths,
    "other_urls": _other_urls,
    "overrides_method": _overrides_method,
    "raises_404": _raises_404,
    "raises_403": _raises_403,
    "raises_400": _raises_400,
    "drops_cookies": _drops_cookies,
    "knows_visitors": _knows_visitors,
}
AFTER = {
    "counts": _counts,
    "status": _status,
    "cookie_if_found": _cookie_if_found,
    "cookie_if_absent": _cookie_if_absent,
    "view_name": _view_name,
    "moves_absent": _moves_absent,
    "own_absent": _own_absent,
    "finds_absent": _finds_absent,
    "gone": _gone,
    "fallback": _fallback,
    "fails_on_absent": _fails_on_absent,
    "footer": _footer,
    "streams": _streams,
    "nonce": _nonce,
    "varies": _varies,
    "by_accept": _by_accept,
    "by_cookie": _by_cookie,
    "by_query": _by_query,
    "by_host": _by_host,
    "by_scheme": _by_scheme,
    "by_path": _by_path,
    "by_method": _by_method,
    "by_user": _by_user,
    "basket": _basket,
    "remembers_absent": _remembers_absent,
    "may_be_cached": _may_be_cached,
    "must_not_be_cached": _must_not_be_cached,
    "plain": _plain,
    "logs": _logs,
}
#: Those with which most doors open.
CALM = (
    *("status", "cookie_if_found", "logs", "varies", "plain", "footer", "nonce", "by_host", "by_scheme"),
    *("may_be_cached", "must_not_be_cached", "own_absent", "knows_visitors", "basket", "by_accept"),
    *("redirects_legacy", "moves_old_paths", "drops_cookies", "by_method"),
)
#: Those whose answers depend on the request, or on more than it: its probes tell the door, which has to stay shut.
TELLTALE = (
    *("cookie_if_absent", "cookie_if_absent", "fallback", "fallback", "by_cookie", "by_query", "by_path", "view_name"),
    *("is_hidden_from_strangers", "is_closed_by_query", "remembers_absent"),
)
#: For some visitors or paths alone. The probes of the door are none of these; its page says not to use it then.
NOT_FOR_A_DOOR = {"other_urls", "overrides_method", "raises_404", "raises_403", "redirects_legacy"}
#: They read the session, so they belong after its middleware: before it they get no ``Vary: Cookie``.
OF_SESSIONS = {"basket", "by_user", "remembers_absent"}
NAMES = (*BEFORE, *AFTER)

Change = Callable[..., Any]


def _functions(before: Change, after: Change) -> dict[str, Any]:
    """The middleware as a function, for sync alone, for async alone, for both, and as a class for both."""

    def make_sync(get_response):
        def middleware(request):
            if (early := before(request)) is not None:
                return early
            response = get_response(request)
            return after(request, response) or response

        return middleware

    def make_async(get_response):
        async def middleware(request):
            if (early := await sync_to_async(before)(request)) is not None:
                return early
            response = await get_response(request)
            return await sync_to_async(after)(request, response) or response

        return middleware

    def make(get_response):
        return make_async(get_response) if iscoroutinefunction(get_response) else make_sync(get_response)

    class Both:
        sync_capable = async_capable = True

        def __init__(self, get_response):
            self.call = make(get_response)
            if iscoroutinefunction(get_response):
                markcoroutinefunction(self)

        def __call__(self, request):
            return self.call(request)

    return {
        "sync": sync_only_middleware(make_sync),
        "async": async_only_middleware(make_async),
        "both": sync_and_async_middleware(make),
        "class": Both,
        "mixin": type(
            "Mixin",
            (MiddlewareMixin,),
            {
                "process_request": lambda self, request: before(request),
                "process_response": lambda self, request, response: after(request, response) or response,
            },
        ),
    }


STYLES = ("sync", "sync", "both", "class", "mixin", "mixin", "async")
for _name in NAMES:
    _found = _functions(BEFORE.get(_name, lambda request: None), AFTER.get(_name, lambda request, response: None))
    globals().update({f"{_name}_{style}": each for style, each in _found.items()})


# -- one hook of the old style


class LogsView(MiddlewareMixin):
    def process_view(self, request, view, args, kwargs):
        log.append(("view", request.path, request.resolver_match.view_name, dict(kwargs)))


class ChangesId(MiddlewareMixin):
    def process_view(self, request, view, args, kwargs):
        if kwargs.get("pk") in (8, 9):
            kwargs["pk"] = 2


class AnswersView(MiddlewareMixin):
    def process_view(self, request, view, args, kwargs):
        return HttpResponse("instead of the view") if kwargs.get("pk") == 8 else None


class Answers404(MiddlewareMixin):
    def process_exception(self, request, exception):
        return HttpResponse(f"instead of {exception}") if isinstance(exception, Http404) else None


class LogsException(MiddlewareMixin):
    def process_exception(self, request, exception):
        log.append(("exception", request.path, type(exception).__name__, str(exception)))


class AddsToTemplate(MiddlewareMixin):
    def process_template_response(self, request, response):
        log.append(("template", request.path, response.status_code))
        response.context_data = {**(response.context_data or {}), "added": "by the middleware"}
        return response


HOOKS = ("LogsView", "LogsView", "ChangesId", "AnswersView", "Answers404", "LogsException", "AddsToTemplate")
