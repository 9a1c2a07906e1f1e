"""Middlewares that projects have, each with something that the door has to see."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

from django.contrib.auth.middleware import RemoteUserMiddleware
from django.http import HttpResponse, HttpResponseForbidden, HttpResponseNotFound, HttpResponsePermanentRedirect

from bloomguard.lookups.context import guarded_lookups
from tests.shop.models import Product

#: What :class:`Unmasks` changes in an ID.
MASK = 0x5555
#: What ``notes_tenant`` has read of the request.
tenant = ContextVar("tenant", default="")


class ByOwnHeader(RemoteUserMiddleware):
    """Signs in whoever a proxy has let through."""

    header = "HTTP_X_USER"


def _after(change):
    """A middleware that changes the response: ``change(request, response)``."""

    def middleware(get_response):
        def respond(request):
            response = get_response(request)
            return change(request, response) or response

        return respond

    return middleware


def _before(answer):
    """A middleware that answers ahead of the view, or changes the request: ``answer(request)``."""

    def middleware(get_response):
        return lambda request: answer(request) or get_response(request)

    return middleware


def _header(name, value):
    def change(request, response):
        response[name] = value(request)

    return _after(change)


def _cached(request, response):
    """Lets caches keep what does not say for how long."""
    response.headers.setdefault("Cache-Control", "max-age=300")


def _fallback(request, response):
    """Looks each path up that was not found, as redirects and flat pages do."""
    if response.status_code == 404 and Product.objects.filter(name=request.path).exists():
        return HttpResponsePermanentRedirect("/")
    return None


def _csp(request, response):
    nonce = getattr(request, "nonce", "")
    response["Content-Security-Policy"] = f"script-src 'nonce-{nonce}'; frame-ancestors 'none'"


def with_nonce(get_response):
    def middleware(request):
        request.nonce = secrets.token_urlsafe(16)
        response = get_response(request)
        _csp(request, response)
        return response

    return middleware


def _set_urlconf(request):
    request.urlconf = "tests.shop.urls"


def _set_urlconf_of_one(request):
    if request.get_host() == "one":
        _set_urlconf(request)


def _rewrite_path(request):
    request.path_info = "/other/"


def _is_insider(request):
    return request.META["REMOTE_ADDR"] in ("127.0.0.1", "10.0.0.5")


sets_urlconf = _before(_set_urlconf)
sets_urlconf_of_one = _before(_set_urlconf_of_one)
rewrites_path = _before(_rewrite_path)
maintenance = _before(lambda request: HttpResponse("maintenance", status=503))
insiders_alone = _before(lambda request: None if _is_insider(request) else HttpResponseForbidden("insiders alone"))
hides_from_strangers = _before(lambda request: None if _is_insider(request) else HttpResponseNotFound("nothing"))
fallback = _after(_fallback)
cached = _after(_cached)
tells_insiders = _header("X-Backend", lambda request: "db1.internal" if _is_insider(request) else "-")
by_address = _header("X-Network", lambda request: request.META["REMOTE_ADDR"].partition(".")[0])
by_host = _header("X-Tenant", lambda request: request.get_host().partition(":")[0])
by_port = _header("X-Origin", lambda request: request.get_host())
by_cookie = _header("X-Known", lambda request: str(bool(request.COOKIES)))
by_query = _header("X-Page", lambda request: request.GET.get("page", "1"))
by_accept = _header("X-Kind", lambda request: request.headers.get("Accept", "")[:16])
request_id = _header("X-Request-ID", lambda request: secrets.token_hex(8))
has_header = _header("X-Ours", lambda request: "yes")
sets_cookie = _after(lambda request, response: response.set_cookie("seen", "yes"))


class Unmasks:
    """The IDs in paths are masked; the view gets the row's own."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_view(self, request, view, args, kwargs):
        kwargs["pk"] ^= MASK


class CallsUnmasked(Unmasks):
    """Calls the view itself."""

    def process_view(self, request, view, args, kwargs):
        return view(request, *args, **{**kwargs, "pk": kwargs["pk"] ^ MASK})


def unmasks(get_response):
    """A factory function of such middleware: no class in the settings has its method."""
    return Unmasks(get_response)


def notes_tenant(get_response):
    def middleware(request):
        tenant.set(request.headers.get("X-Tenant", ""))
        return get_response(request)

    return middleware


def guards_lookups(get_response):
    return guarded_lookups()(lambda request: get_response(request))
