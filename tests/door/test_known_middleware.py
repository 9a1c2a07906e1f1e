"""Middleware from PyPI that lets guards answer before the view; ``nox -s compatibility`` installs these packages."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from django.test import Client
from django.urls import path

from tests.door.conftest import STARTPROJECT
from tests.shop import views

#: A middleware -> the apps that it needs.
KNOWN = {
    "allauth.account.middleware.AccountMiddleware": ["allauth", "allauth.account"],
    "django_prometheus.middleware.PrometheusAfterMiddleware": ["django_prometheus"],
    "django_ratelimit.middleware.RatelimitMiddleware": [],
    "elasticapm.contrib.django.middleware.TracingMiddleware": [],
    "scout_apm.django.middleware.ViewTimingMiddleware": ["scout_apm.django"],
    "social_django.middleware.SocialAuthExceptionMiddleware": ["social_django"],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of theirs
@pytest.mark.parametrize("middleware", KNOWN)
def test_known_middleware_lets_guards_answer_before_the_view(shop, pages, shielded, settings, middleware):
    """Its ``process_view`` gives each view what the path says, and its ``process_exception`` answers no ``Http404``."""
    if find_spec(middleware.partition(".")[0]) is None:
        pytest.skip("nox -s compatibility installs it")
    called: list[int] = []

    def view(request, pk):
        called.append(pk)
        return views.product(request, pk)

    settings.MIDDLEWARE = [*STARTPROJECT, middleware, "bloomguard.middleware.BloomGuardMiddleware"]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, *KNOWN[middleware]]
    settings.ELASTIC_APM, settings.SCOUT_MONITOR = {"ENABLED": False}, False
    pages(path("p/<int:pk>/", view, name="product"))

    assert [Client().get(f"/p/{pk}/").status_code for pk in (7, 8)] == [200, 404]
    assert called == [7]
    assert shielded().is_open
