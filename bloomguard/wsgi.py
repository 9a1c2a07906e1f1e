"""The front door of a WSGI site.

application = shield(get_wsgi_application())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def shield(application: Application) -> Application:
    """``application``, with absent IDs of guarded routes answered 404 before Django's request machinery.

    ``application`` is what ``get_wsgi_application()`` returns. Raises :class:`ConfigurationError` if it is not. Where
    the front door has to stay shut (see the docs), which is logged, ``application`` itself comes back.
    """
    from .answers.frontdoor import front_door  # needs the apps, which wsgi.py loads after its imports
    from .counting.outcomes import blocked
    from .guards import Guard

    door = front_door(application)
    if door is None:
        return application
    methods, absent, page_for = door.methods, door.absent, door.page
    takes_forwarded_host = door.takes_forwarded_host
    header, secure_value = door.proxy_header or ("", "")
    decide = Guard.decide

    def shielded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, page = environ["REQUEST_METHOD"], None
        if method in methods:
            try:
                path = environ.get("PATH_INFO", "")
                if path.isascii() and (guard := absent(method, path, decide)) and not _is_mounted(environ):
                    host = environ.get("HTTP_HOST", "")
                    if takes_forwarded_host:
                        host = environ.get("HTTP_X_FORWARDED_HOST", host)
                    scheme = environ["wsgi.url_scheme"]
                    if header and (told := environ.get(header)) is not None:
                        scheme = "https" if told.split(",", 1)[0].strip() == secure_value else "http"
                    page = page_for(host, scheme == "https", "HTTP_COOKIE" in environ)
                    if page is not None:
                        blocked(guard, None)
            except Exception as error:
                door.failed(error)
        if page is None:
            return application(environ, start_response)
        start_response("404 Not Found", list(page.headers))  # an error of the server's own is its own
        return [] if method == "HEAD" else [page.body]

    return shielded


def _is_mounted(environ: dict[str, Any]) -> bool:
    """Whether the site lies below a prefix, which its pages' links would have to have."""
    return bool(environ.get("SCRIPT_NAME") or environ.get("SCRIPT_URL") or environ.get("REDIRECT_URL"))
