"""The door of a WSGI site, in ``wsgi.py``:

application = shield(get_wsgi_application())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def shield(application: Application) -> Application:
    """Wrap ``application``: answer absent IDs of guarded routes with a 404 before Django creates a request.

    If ``application`` is not the result of ``get_wsgi_application()``, or the door has to stay shut for another reason
    (see the docs), logs the reason and returns ``application`` itself.
    """
    from .door.door import open_door  # needs the app registry, which is loaded after the imports of wsgi.py
    from .guards.counters import blocked

    door = open_door(application)
    if door is None:
        return application
    failed, methods, ask, page_for = door.failed, door.methods, door.ask, door.page
    takes_forwarded_host, proto_header = door.takes_forwarded_host, door.proto_header

    def shielded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        response, method = None, environ["REQUEST_METHOD"]
        if method in methods:
            try:
                path = environ.get("PATH_INFO", "")
                routes = door.index.candidates(path)
                if routes and path.isascii() and (guard := ask(method, path, routes, environ)) is not None:
                    host = environ.get("HTTP_HOST", "")
                    if takes_forwarded_host:
                        host = environ.get("HTTP_X_FORWARDED_HOST", host)
                    page = page_for(host, environ["wsgi.url_scheme"], environ.get(proto_header))
                    if page is not None and environ.keys().isdisjoint(page.environ_keys) and not _is_mounted(environ):
                        response = page.answer(method)
                        blocked(guard, None)
            except Exception as error:
                failed(error)
        if response is None or page is None:
            return application(environ, start_response)
        headers, body = response
        start_response(page.status, list(headers))  # outside of `try`: the server handles its own errors
        # No list: for one of one item some servers add a Content-Length, which Django's responses do not get.
        return iter((body,))

    return shielded


def _is_mounted(environ: dict[str, Any]) -> bool:
    """Whether the site is mounted below a URL prefix, which the links in its pages need."""
    return bool(environ.get("SCRIPT_NAME") or environ.get("SCRIPT_URL") or environ.get("REDIRECT_URL"))
