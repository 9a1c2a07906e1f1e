"""Middleware and context processors as sites write them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden

GetResponse = Callable[[HttpRequest], HttpResponse]

INSIDE = ip_network("10.0.0.0/8")


class Maintenance:
    """The switch of the maintenance mode."""

    is_on = False


def nonce(get_response: GetResponse) -> GetResponse:
    """A Content-Security-Policy with a nonce, which pages put into their scripts."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.csp_nonce = secrets.token_urlsafe(16)  # type: ignore[attr-defined]
        response = get_response(request)
        response["Content-Security-Policy"] = f"script-src 'nonce-{request.csp_nonce}'"  # type: ignore[attr-defined]
        return response

    return middleware


def tenant(get_response: GetResponse) -> GetResponse:
    """Each host is a tenant with a name and a header; one of them has moved."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.tenant = request.get_host().split(".")[0]  # type: ignore[attr-defined]
        if request.tenant == "closed":  # type: ignore[attr-defined]
            return HttpResponse("This shop is closed", status=410)
        response = get_response(request)
        response["X-Tenant"] = request.tenant  # type: ignore[attr-defined]
        return response

    return middleware


def allow_list(get_response: GetResponse) -> GetResponse:
    """Nobody comes in from outside."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if ip_address(request.META["REMOTE_ADDR"]) not in INSIDE:
            return HttpResponseForbidden("Not from where you are")
        return get_response(request)

    return middleware


def insiders(get_response: GetResponse) -> GetResponse:
    """Whoever asks from inside is told which server answers."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if ip_address(request.META["REMOTE_ADDR"]) in INSIDE:
            response["X-Server"] = "rack-7"
        return response

    return middleware


def maintenance(get_response: GetResponse) -> GetResponse:
    """While the site is being worked on, only its staff see it."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if Maintenance.is_on and not request.user.is_staff:  # type: ignore[union-attr]
            return HttpResponse("Back in a minute", status=503, headers={"Retry-After": "60"})
        return get_response(request)

    return middleware


def visitor(request: HttpRequest) -> dict[str, Any]:
    """Context processor: what each page of the site shows of its visitor."""
    return {
        "basket": request.session.get("basket", 0),
        "visitor": request.user.get_username() or "nobody",
        "notices": [str(message) for message in messages.get_messages(request)],
        "tenant": getattr(request, "tenant", ""),
        "nonce": getattr(request, "csp_nonce", ""),
    }
