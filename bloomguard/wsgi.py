"""The door of a WSGI site.

application = shield(get_wsgi_application())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def shield(application: Application) -> Application:
    """``application``, with absent IDs of guarded routes answered 404 before Django makes a request of them.

    ``application`` is what ``get_wsgi_application()`` returns. Raises :class:`ConfigurationError` if it is not. Where
    the door has to stay shut (see the docs), which is logged, ``application`` itself comes back.
    """
    from .counting.outcomes import blocked
    from .door.door import open_door  # needs the apps, which wsgi.py loads after its imports

    found = open_door(application)
    if found is None:
        return application
    door, methods, absent, page_for = found, found.methods, found.absent, found.page
    takes_forwarded_host = door.takes_forwarded_host
    header, secure_value = door.proxy_header or ("", "")

    def shielded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer, method = None, environ["REQUEST_METHOD"]
        if method in methods:
            try:
                path = environ.get("PATH_INFO", "")
                routes = door.index.candidates(path)
                if routes and path.isascii():
                    host = environ.get("HTTP_HOST", "")
                    if takes_forwarded_host:
                        host = environ.get("HTTP_X_FORWARDED_HOST", host)
                    scheme = environ["wsgi.url_scheme"]
                    if header and (said := environ.get(header)) is not None:
                        scheme = "https" if said.split(",", 1)[0].strip() == secure_value else "http"
                    page = page_for(host, scheme)
                    if (
                        page is not None
                        and environ.keys().isdisjoint(page.environ_keys)
                        and not _is_mounted(environ)
                        and (guard := absent(method, path, routes))
                    ):
                        answer = page.answer(method)
                        blocked(guard, None)
            except Exception as error:
                door.failed(error)
        if answer is None or page is None:
            return application(environ, start_response)
        headers, body = answer
        start_response(page.status, list(headers))  # an error of the server's own is its own
        return [] if method == "HEAD" else [body]

    return shielded


def _is_mounted(environ: dict[str, Any]) -> bool:
    """Whether the site lies below a prefix, which its pages' links would have to have."""
    return bool(environ.get("SCRIPT_NAME") or environ.get("SCRIPT_URL") or environ.get("REDIRECT_URL"))
