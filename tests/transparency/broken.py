"""Guards that are not transparent: the harness has to report each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest, HttpResponse

from .models import Entry, OldSlug

GetResponse = Callable[[HttpRequest], HttpResponse]


class BeforeTheView:
    """Answers for each absent ID, whatever stands between the request and the look-up."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        pk = kwargs.get("pk")
        if request.method in {"GET", "HEAD"} and isinstance(pk, int) and not Entry.objects.filter(pk=pk).exists():
            raise Http404
        return None


class BeforeTheRest(BeforeTheView):
    """The same from the front of the list, where there is no session yet for the site's page."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        digits = [part for part in request.path.split("/") if part.isdigit()]
        if request.method in {"GET", "HEAD"} and digits and not Entry.objects.filter(pk=digits[-1]).exists():
            return response_for_exception(request, Http404())
        return self.get_response(request)

    process_view = None  # type: ignore[assignment]


def _on_404(change: Callable[[HttpRequest, HttpResponse], Any]) -> Callable[[GetResponse], GetResponse]:
    def factory(get_response: GetResponse) -> GetResponse:
        def middleware(request: HttpRequest) -> HttpResponse:
            response = get_response(request)
            if response.status_code == 404:
                change(request, response)
            return response

        return middleware

    return factory


@_on_404
def drops_a_header(request: HttpRequest, response: HttpResponse) -> None:
    del response.headers["X-Frame-Options"]


@_on_404
def adds_a_header(request: HttpRequest, response: HttpResponse) -> None:
    response.headers["X-Bloomguard"] = "absent"


@_on_404
def adds_to_vary(request: HttpRequest, response: HttpResponse) -> None:
    response.headers["Vary"] = "Cookie, Accept"


@_on_404
def sets_a_cookie(request: HttpRequest, response: HttpResponse) -> None:
    response.set_cookie("seen", "1")


@_on_404
def says_more(request: HttpRequest, response: HttpResponse) -> None:
    if not response.streaming:
        response.content += b" "


@_on_404
def says_410(request: HttpRequest, response: HttpResponse) -> None:
    response.status_code = 410


@_on_404
def may_be_kept(request: HttpRequest, response: HttpResponse) -> None:
    response.headers["Cache-Control"] = "max-age=60"


@_on_404
def writes(request: HttpRequest, response: HttpResponse) -> None:
    OldSlug.objects.get_or_create(slug="written", defaults={"now": "written"})


def stores_nothing(get_response: GetResponse) -> GetResponse:
    """``no-store`` where there is no 404."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "no-store"
        return response

    return middleware


#: Each stands last but the one that is at the front, and those that change an answer when it is complete.
BROKEN = {
    "BeforeTheView": "last",
    "BeforeTheRest": "first",
    "drops_a_header": "first",
    "adds_a_header": "first",
    "adds_to_vary": "first",
    "sets_a_cookie": "first",
    "says_more": "first",
    "says_410": "first",
    "may_be_kept": "first",
    "writes": "first",
    "stores_nothing": "first",
}


def with_broken(name: str, middleware: list[str]) -> list[str]:
    """The middleware with the broken guard at its place."""
    path = f"tests.transparency.broken.{name}"
    return [path, *middleware] if BROKEN[name] == "first" else [*middleware, path]
