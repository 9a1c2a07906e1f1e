"""Sites with a stack of middleware, settings, views and requests that are drawn at random."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from django.conf.urls.i18n import i18n_patterns
from django.urls import include, path

from tests.shop.models import Product
from tests.support.guarding import urlconf

from . import stack_middlewares as own
from .stack_views import (
    CALM_PAGES,
    DECORATORS,
    PAGES,
    RARE_PAGES,
    Detail,
    by_pk,
    by_pk_async,
    by_slug,
    own_page,
    remembers,
    with_cookie,
)

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
#: Of Django and of packages, in the order that they ask for, with the chance that a stack has each.
KNOWN = {
    "django.middleware.cache.UpdateCacheMiddleware": 0.0,
    "django.middleware.security.SecurityMiddleware": 0.4,
    "whitenoise.middleware.WhiteNoiseMiddleware": 0.2,
    "django.middleware.gzip.GZipMiddleware": 0.2,
    "corsheaders.middleware.CorsMiddleware": 0.25,
    "django.contrib.sessions.middleware.SessionMiddleware": 0.6,
    "django.middleware.http.ConditionalGetMiddleware": 0.3,
    "django.middleware.locale.LocaleMiddleware": 0.3,
    "django.middleware.common.CommonMiddleware": 0.7,
    "django.middleware.common.BrokenLinkEmailsMiddleware": 0.1,
    "django.middleware.csrf.CsrfViewMiddleware": 0.5,
    "django.contrib.auth.middleware.AuthenticationMiddleware": 0.5,
    "django.contrib.auth.middleware.RemoteUserMiddleware": 0.1,
    "django.contrib.auth.middleware.LoginRequiredMiddleware": 0.08,
    "django.contrib.messages.middleware.MessageMiddleware": 0.3,
    "django.middleware.clickjacking.XFrameOptionsMiddleware": 0.5,
    "django_ratelimit.middleware.RatelimitMiddleware": 0.1,
}
UPDATE, FETCH = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"
NEEDS = {
    "django.contrib.auth.middleware.AuthenticationMiddleware": "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware": "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.RemoteUserMiddleware": "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware": "django.contrib.auth.middleware.AuthenticationMiddleware",
}
SESSION = "s" * 32
TOKEN = "u" * 32
HOSTS = ("www.testserver", "testserver:8000", "TESTSERVER", "a.example.com", "example.com", "evil", "")
KINDS = ("plain", "plain", "plain", "template", "redirect", "token", "async", "slug", "slug", "detail", "detail", "own")
#: IDs: some exist, 4 and 5 were deleted, the others never were.
IDS = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "9", "9", "77", "9999", "123456", "007")
SLUGS = ("one", "two", "hidden", "gone", "atlantis", "lemuria", "1")


@dataclass
class Request:
    method: str
    url: str
    scheme: str
    client: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def __str__(self) -> str:
        return f"{self.method} {self.scheme} {self.url} {self.client} {self.headers}"


class Site:
    """One site: everything about it follows from the seed."""

    def __init__(self, seed: int, static: str) -> None:
        self.draw = random.Random(seed)
        self.texts: list[str] = []
        self.is_async = self._chance(0.4)
        self.routes: dict[str, list[str]] = {"product": [], "article": []}
        self.is_auto = self._chance(0.1)
        self.paths: list[tuple[str, str]] = []  # the start of the path, the kind of its ID
        is_calm = self._chance(0.75)  # else nearly no door opens
        self.middleware = self._stack(is_calm)
        self.settings = self._settings(static)
        self.methods = self.draw.choices((("GET", "HEAD"), ("GET", "HEAD", "POST"), ("GET",)), (8, 1, 1))[0]
        self.is_atomic = self._chance(0.15)
        views = [self._pattern(number) for number in range(self.draw.randint(2, 4))]
        page = self.draw.choice(CALM_PAGES if is_calm else (None, *PAGES, *PAGES, *RARE_PAGES))
        self.texts.append(f"page {page and page.__name__}")
        attributes = {"handler404": page} if page else {}
        others = [path("a0/<int:pk>/", own_page, name="other"), path("a1/<int:pk>/", by_pk(Product, ""), name="v1")]
        own.other_urls[:] = [urlconf(*others, **attributes)]
        self.urls = urlconf(*views, **attributes)
        self.requests = [self._request() for _ in range(self.draw.randint(8, 14))]

    def _chance(self, share: float) -> bool:
        return self.draw.random() < share

    # -- the stack

    def _stack(self, is_calm: bool) -> list[str]:
        found = [name for name, share in KNOWN.items() if self._chance(share)]
        for name, other in reversed(NEEDS.items()):
            if name in found and other not in found and self._chance(0.95):
                found.append(other)
        found.sort(key=list(KNOWN).index)
        if self._chance(0.15):
            self.draw.shuffle(found)
        names = [f"{name}_{self.draw.choice(own.STYLES)}" for name in self._behaviours(is_calm)]
        hooks = self.draw.sample(own.HOOKS, self.draw.choice((0, 0, 1, 1, 2)))
        if is_calm:
            hooks = hooks if self._chance(0.1) else []
            found = [name for name in found if not name.endswith("LoginRequiredMiddleware")]
        for name in (*names, *hooks):
            found.insert(self.draw.randint(0, len(found)), f"{own.__name__}.{name}")
        place = self.draw.choices(("last", "before the cache", "after the cache", "elsewhere"), (7, 2, 1, 2))[0]
        if place in ("before the cache", "after the cache"):
            found.insert(self.draw.randint(0, len(found)) if self._chance(0.2) else 0, UPDATE)
            found += [GUARD, FETCH] if place == "before the cache" else [FETCH, GUARD]
        else:
            found.insert(self.draw.randint(0, len(found)) if place == "elsewhere" else len(found), GUARD)
        return found

    def _behaviours(self, is_calm: bool) -> list[str]:
        if is_calm and self._chance(0.4):
            return [self.draw.choice(own.TELLTALE)]
        names = own.CALM if is_calm else own.NAMES
        return self.draw.sample(names, self.draw.choice((0, 1, 1, 2, 3)))

    @property
    def is_for_a_door(self) -> bool:
        """Whether the page on the door does not say that this is no site for one."""
        names = [each.rpartition(".")[2].rpartition("_")[0] or each.rpartition(".")[2] for each in self.middleware]
        first = names[: names.index("SessionMiddleware")] if "SessionMiddleware" in names else names
        return own.NOT_FOR_A_DOOR.isdisjoint(names) and own.OF_SESSIONS.isdisjoint(first)

    @property
    def has_late_etags(self) -> bool:
        """Whether ``ConditionalGetMiddleware`` makes ETags of bodies that another middleware has changed."""
        changing = ("gzip", "footer", "nonce", "own_absent", "streams", "AddsToTemplate")
        return any(part in name for name in self.middleware for part in changing)

    def _settings(self, static: str) -> dict[str, Any]:
        def some(share: float, **given: Any) -> dict[str, Any]:
            return given if self._chance(share) else {}

        choice = self.draw.choice
        hosts = [["testserver"], ["testserver", ".example.com"], [".testserver"], ["*"], ["testserver", "*"]]
        return {
            "DEBUG": False,
            "ALLOWED_HOSTS": choice([*hosts, *hosts[:3]]),
            "STATIC_ROOT": static,
            "WHITENOISE_USE_FINDERS": False,
            "LANGUAGES": [("en-us", "English"), ("de", "German"), ("fr", "French")],
            **some(0.25, APPEND_SLASH=False),
            **some(0.08, PREPEND_WWW=True),
            **some(0.1, USE_I18N=False),
            **some(0.1, SECURE_SSL_REDIRECT=True),
            **some(0.2, SECURE_HSTS_SECONDS=3600, SECURE_HSTS_PRELOAD=True),
            **some(0.15, SECURE_REFERRER_POLICY=None, SECURE_CONTENT_TYPE_NOSNIFF=False),
            **some(0.15, SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https")),
            **some(0.15, USE_X_FORWARDED_HOST=True),
            **some(0.1, USE_X_FORWARDED_PORT=True),
            **some(0.02, FORCE_SCRIPT_NAME="/mounted"),
            **some(0.1, CSRF_USE_SESSIONS=True),
            **some(0.1, CSRF_COOKIE_SECURE=True, CSRF_COOKIE_SAMESITE="Strict"),
            **some(0.1, CSRF_TRUSTED_ORIGINS=["https://*.example.com"]),
            **some(0.08, SESSION_SAVE_EVERY_REQUEST=True),
            **some(0.1, SESSION_ENGINE="django.contrib.sessions.backends.cache"),
            **some(0.1, SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies"),
            **some(0.1, SESSION_EXPIRE_AT_BROWSER_CLOSE=True),
            **some(0.2, CACHE_MIDDLEWARE_SECONDS=choice((0, 30)), CACHE_MIDDLEWARE_KEY_PREFIX="x"),
            **some(0.15, X_FRAME_OPTIONS="SAMEORIGIN"),
            **some(0.2, CORS_ALLOW_ALL_ORIGINS=True, CORS_ALLOW_CREDENTIALS=choice((True, False))),
            **some(0.2, CORS_ALLOWED_ORIGINS=["https://a.example"], CORS_URLS_REGEX=choice((r"^/v0/", r"^.*$"))),
            **some(0.1, LANGUAGE_CODE="de"),
            **some(0.03, DISALLOWED_USER_AGENTS=[re.compile("bad")]),
            **some(0.1, DEFAULT_CHARSET="latin-1"),
            **some(0.05, RATELIMIT_VIEW="tests.door.stack_views.own_page"),
            **some(0.1, MESSAGE_STORAGE="django.contrib.messages.storage.cookie.CookieStorage"),
        }

    # -- views

    def _pattern(self, number: int) -> Any:
        kind = self.draw.choice(KINDS)
        guard, converter, start = "product", "int:pk", f"v{number}/"
        if kind == "slug":
            view, guard, converter = by_slug, "article", self.draw.choice(("slug:slug", "str:slug"))
        elif kind == "detail":
            view = Detail.as_view()
        elif kind == "own":
            view = self.draw.choice((own_page, remembers, with_cookie))
        elif kind == "async" and not self.is_atomic:  # Django refuses both together
            view = by_pk_async(Product)
        else:
            view = by_pk(Product, "" if kind == "async" else kind)
        names = self.draw.sample(list(DECORATORS), self.draw.choice((0, 0, 0, 0, 1, 1, 2)))
        for name in names:
            view = DECORATORS[name](view)
        if kind != "own" and not self._chance(0.1):
            self.routes[guard].append(f"v{number}")
        end = self.draw.choices(("/", "", "/more/"), (8, 1, 1))[0]
        is_by_language = self._chance(0.03)
        if self._chance(0.3):
            entry = path(start, include([path(f"<{converter}>{end}", view, name=f"v{number}")]))
        else:
            entry = path(f"{start}<{converter}>{end}", view, name=f"v{number}")
        self.texts.append(f"/{start}<{converter}>{end} {kind} {names} {'by language' * is_by_language}")
        language = f"/{self.draw.choice(('en-us', 'de', 'fr'))}" if is_by_language else ""
        self.paths.append((f"{language}/{start}", end, guard))
        if is_by_language:
            return i18n_patterns(entry, prefix_default_language=self._chance(0.5))[0]
        return entry

    # -- requests

    def _request(self) -> Request:
        choice = self.draw.choice
        start, end, guard = choice(self.paths)
        url = f"{start}{choice(IDS if guard == 'product' else SLUGS)}{end}"
        odd = self.draw.random()
        if odd < 0.06:
            url = url.rstrip("/")
        elif odd < 0.1:
            url = choice(("/", "")) + url.replace("/", "//", 1)
        elif odd < 0.13:
            url = choice(("/old", "/de", "/static", "/a0")) + url
        elif odd < 0.16:
            url = choice(("/nowhere/", "/", "/static/x.css", "/a0/2/", "/v0/é/", "/v0/%00/"))
        if self._chance(0.25):
            url += choice(("?page=2", "?q=404", "?next=/", "?a=1&a=2", "?_method=DELETE"))
        method = self.draw.choices(("GET", "HEAD", "OPTIONS", "POST"), (14, 3, 1, 2))[0]
        headers = {"Host": "testserver"}
        for share, name, values in (
            (0.06, "Host", HOSTS),
            (0.12, "Accept-Encoding", ("gzip", "gzip, br", "identity")),
            (0.12, "Accept-Language", ("de", "fr,en;q=0.5", "xx")),
            (0.12, "Accept", ("text/html", "application/json", "*/*")),
            (0.06, "If-None-Match", ('"x"', "*")),
            (0.04, "If-Modified-Since", ("Wed, 21 Oct 2065 07:28:00 GMT",)),
            (0.06, "Range", ("bytes=0-3",)),
            (0.08, "Origin", ("https://a.example", "https://b.example", "null")),
            (0.05, "Authorization", ("Basic eDp5",)),
            (0.06, "X-Forwarded-Proto", ("https", "http", "https, http")),
            (0.06, "X-Forwarded-Host", ("testserver", "a.example.com", "evil")),
            (0.04, "X-Forwarded-Port", ("8443",)),
            (0.05, "X-Requested-With", ("XMLHttpRequest",)),
            (0.05, "X-Site", ("other",)),
            (0.05, "X-Method", ("POST", "HEAD", "GET")),
            (0.06, "User-Agent", ("bad", "Mozilla/5.0")),
            (0.05, "Referer", ("http://testserver/", "http://b.example/")),
            (0.06, "Access-Control-Request-Method", ("GET",)),
            (0.03, "Cache-Control", ("no-cache",)),
            (0.03, "Remote-User", ("reader",)),
        ):
            if self._chance(share):
                headers[name] = choice(values)
        cookies = []
        for share, text in (
            (0.15, f"sessionid={choice((SESSION, 'unknown-session'))}"),
            (0.1, f"csrftoken={TOKEN}"),
            (0.05, "django_language=de"),
            (0.05, "seen=yes"),
        ):
            if self._chance(share):
                cookies.append(text)
        if method == "POST":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            if self._chance(0.7):
                cookies.append(f"csrftoken={TOKEN}")
                headers["X-CSRFToken"] = TOKEN
        if cookies:
            headers["Cookie"] = "; ".join(dict.fromkeys(cookies))
        scheme = "https" if self._chance(0.15) else "http"
        return Request(method, url, scheme, choice(("203.0.113.9", "203.0.113.9", "10.1.2.3")), headers)

    def __str__(self) -> str:
        stack = "\n".join(f"  {name}" for name in self.middleware)
        hidden = ("STATIC_ROOT", "LANGUAGES")
        settings = {name: value for name, value in self.settings.items() if name not in hidden}
        texts = "\n".join(f"  {text}" for text in self.texts)
        kind = f"{'ASGI' if self.is_async else 'WSGI'}{', ATOMIC_REQUESTS' * self.is_atomic}"
        routes = "auto" if self.is_auto else self.routes
        return f"{kind}\n{stack}\n  {settings}\n{texts}\n  {routes} for {self.methods}"
