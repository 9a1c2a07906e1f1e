"""A site with a door, for real servers. What Django answers itself says so in a header."""

from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse

from bloomguard import asgi, wsgi

settings.ALLOWED_HOSTS = ["127.0.0.1"]
settings.MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "tests.support.front_site.say_so",
]


def say_so(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        from bloomguard.lookups.context import PROBE, contexts  # needs the app registry

        response: HttpResponse = get_response(request)
        if contexts.get() is not PROBE:
            response["X-Django"] = "yes"
        return response

    return middleware


def __getattr__(name: str) -> Any:
    if name == "application":
        return wsgi.shield(get_wsgi_application())
    if name == "async_application":
        return asgi.shield(get_asgi_application())
    raise AttributeError(name)
