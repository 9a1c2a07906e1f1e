"""The visitors that ask for the site's 404 page before the door opens: all must get the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django.apps import apps
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import get_random_string

#: Addresses from networks reserved for documentation (RFC 5737): no site trusts them.
_CLIENT, _OTHER_CLIENT = "192.0.2.10", "198.51.100.20"
#: An address from a private network: a site may show such clients another page. No page is built from these.
_INSIDER = "10.0.0.10"


@dataclass(frozen=True)
class Visitor:
    """The client, headers and query string of a probe; ``words`` describe what is special about them."""

    words: str = field(default="", compare=False)
    client: str = _CLIENT
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""

    def without(self, names: frozenset[str]) -> Visitor:
        """Return a copy without these headers."""
        return replace(self, headers={name: value for name, value in self.headers.items() if name not in names})


STRANGER = Visitor()


def visitors() -> list[Visitor]:
    """Return the visitors that all must get the same page; the last one combines everything."""
    language = next((code for code, _ in settings.LANGUAGES if code != settings.LANGUAGE_CODE), "de")
    cookies = {
        settings.SESSION_COOKIE_NAME: get_random_string(32),
        settings.CSRF_COOKIE_NAME: get_random_string(32),
        settings.LANGUAGE_COOKIE_NAME: language,
    }
    cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    browser = {
        "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "accept-encoding": "gzip, deflate, br",
        "accept-language": f"{language},fr;q=0.5",
        "user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    }
    script = {"accept": "application/json", "x-requested-with": "XMLHttpRequest", "hx-request": "true"}
    return [
        Visitor("from another address", client=_OTHER_CLIENT),
        Visitor("from a private address", client=_INSIDER),
        Visitor("with cookies", headers=cookie),
        Visitor("of a browser", headers=browser),
        Visitor("of a script", headers=script),
        Visitor("with a query string", query="page=2&next=/"),
        Visitor("of a browser with cookies and a query string, from another address",
                _OTHER_CLIENT, {**cookie, **browser}, "page=2"),
    ]  # fmt: skip


def visitor_with_message() -> Visitor | None:
    """Return a visitor whom a view has left a message in a cookie; ``None`` if the site keeps messages elsewhere."""
    if not apps.is_installed("django.contrib.messages"):
        return None
    from django.contrib.messages import INFO
    from django.contrib.messages.storage import default_storage

    request, response = HttpRequest(), HttpResponse()
    request.session = {}  # type: ignore[assignment]  # for a storage that falls back to it
    try:
        storage = default_storage(request)
        storage.add(INFO, "a message")
        storage.update(response)
    except Exception:  # a storage of the project's own, which needs more of a request
        return None
    cookies = "; ".join(f"{name}={cookie.coded_value}" for name, cookie in response.cookies.items())
    return Visitor("with a message", headers={"cookie": cookies}) if cookies else None
