"""What the tests of the door share."""

from __future__ import annotations

import pytest

from tests.door.site import Asgi, Wsgi
from tests.shop import views
from tests.support.guarding import urlconf

STARTPROJECT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]


@pytest.fixture(params=[Wsgi, Asgi], ids=["wsgi", "asgi"])
def shielded(request, settings):
    """``shielded()`` is a site with a door, without any other guard, whose one host is ``testserver``."""
    settings.MIDDLEWARE = STARTPROJECT
    settings.ALLOWED_HOSTS = ["testserver"]
    return request.param


@pytest.fixture
def pages(settings):
    """``pages(*patterns, handler404=...)`` gives the site another URLconf; without patterns, one guarded route."""
    from django.urls import path

    def use(*patterns, handler404=None):
        patterns = patterns or (path("p/<int:pk>/", views.product, name="product"),)
        settings.ROOT_URLCONF = urlconf(*patterns, **({"handler404": handler404} if handler404 else {}))

    return use
