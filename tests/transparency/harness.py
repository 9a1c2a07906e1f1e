"""Drive the site through a table of combinations, with and without guards, and compare what it answers.

A pass is a process of its own, forked from one that has loaded the site, with a copy of the same database: what one
pass writes, caches or learns is unknown to the next.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import multiprocessing
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.contrib.flatpages.models import FlatPage
from django.contrib.messages import constants
from django.contrib.messages.storage.base import Message
from django.contrib.messages.storage.cookie import MessageEncoder
from django.contrib.redirects.models import Redirect
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core import mail
from django.core.cache import cache
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connection, transaction
from django.forms.models import model_to_dict
from guardian.models import UserObjectPermission

from bloomguard import asgi, wsgi
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.verdicts import Verdict
from tests.conftest import Clock
from tests.support.calls import call_asgi, call_wsgi

from . import settings as site
from .broken import BROKEN, with_broken
from .guards import guards_of
from .middleware import Maintenance
from .models import Entry, Note, OldSlug, Place
from .table import KINDS, Combination

#: The modes of a guard, and how a pass is driven in each. What begins with "asgi" is driven so, in a smaller table.
MODES = ["lookup", "route", "auto", "door"]
EXPIRES = datetime(2100, 1, 1, tzinfo=timezone.utc)
TOKEN = "t" * 32


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    mails: int = 0

    def __str__(self) -> str:
        lines = [str(self.status), *(f"{name}: {value}" for name, value in self.headers), f"mails: {self.mails}", ""]
        return "\n".join([*lines, self.body.decode(errors="replace")])


@dataclass
class Pass:
    """What one pass saw."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)  # each combination's row and session, at the end
    queries: int = 0  # that read a guarded table
    reached: int = 0  # requests that reached Django
    current: str = ""
    viewed: set[str] = field(default_factory=set)  # the combinations whose view was called
    verdicts: Counter[str] = field(default_factory=Counter)  # on the combinations' IDs


# -- the data


def prepare(template: Path, table: list[Combination]) -> None:
    """Make the database as it is when the filters are built."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    User = get_user_model()
    users = {
        "user": User.objects.create_user("user", password="secret"),
        "staff": User.objects.create_superuser("staff", password="secret"),
    }
    Entry.objects.create(pk=1, slug="first")
    for model, rows in _rows(table, {"present", "hidden", "deleted"}).items():
        model._base_manager.bulk_create(rows)
    OldSlug.objects.bulk_create(
        OldSlug(slug=each.values["slug"], now="first") for each in table if each.number % 3 == 0
    )
    Session.objects.bulk_create(_session(each, users) for each in table if each.has_session)
    _fallbacks(table)
    permissions = Permission.objects.filter(codename__in=["view_entry", "change_entry"])
    UserObjectPermission.objects.bulk_create(
        UserObjectPermission(user=users["user"], permission=each, content_type=each.content_type, object_pk=str(one.pk))
        for each in permissions
        for one in table
        if "guardian" in one.page.name and one.number % 2
    )
    connection.close()
    shutil.move(settings.DATABASES["default"]["NAME"], template)


def _rows(table: Iterable[Combination], states: set[str]) -> dict[Any, list[Any]]:
    rows: dict[Any, list[Any]] = {Entry: [], Note: [], Place: []}
    for each in table:
        if each.state not in states:
            continue
        values, alive = each.values, each.state != "hidden"
        if each.page.model == "entry":
            rows[Entry].append(Entry(pk=each.pk, slug=values["slug"], alive=alive))
        elif each.page.model == "note":
            rows[Note].append(Note(name=values["name"], alive=alive))
        else:
            rows[Place].append(Place(country=values["code"], slug=values["slug"], alive=alive))
    return rows


def _session(each: Combination, users: dict[str, Any]) -> Session:
    data: dict[str, Any] = {"entry": each.pk, "basket": each.number % 5}
    if user := users.get(each.person):
        data[SESSION_KEY] = str(user.pk)
        data[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        data[HASH_SESSION_KEY] = user.get_session_auth_hash()
    if each.number % 7 == 0:
        data["_messages"] = MessageEncoder().encode([Message(constants.INFO, "read me")])
    return Session(session_key=_session_key(each), session_data=SessionStore().encode(data), expire_date=EXPIRES)


def _session_key(each: Combination) -> str:
    return f"session{each.number:025}"


def _fallbacks(table: list[Combination]) -> None:
    """Some addresses that the site has nothing for are a flat page's, or have moved."""
    pages, redirects = [], []
    for each in table:
        path = each.address.partition("?")[0]
        if each.number % 11 == 0:
            pages.append(FlatPage(url=path, title=f"Flat {each.number}", registration_required=each.number % 2 == 0))
        elif each.number % 13 == 0:
            redirects.append(Redirect(site_id=1, old_path=path, new_path="/moved/" if each.number % 2 else ""))
    pages = list({page.url: page for page in pages}.values())
    redirects = list({redirect.old_path: redirect for redirect in redirects}.values())
    Redirect.objects.bulk_create(redirects)
    FlatPage.objects.bulk_create(pages)
    FlatPage.sites.through.objects.bulk_create(
        FlatPage.sites.through(flatpage_id=pk, site_id=1) for pk in FlatPage.objects.values_list("pk", flat=True)
    )


def after_the_build(table: list[Combination]) -> None:
    """What happens to rows since: some are deleted, some were never committed."""
    for model, rows in _rows(table, {"deleted"}).items():
        for row in rows[::10]:
            model._base_manager.get(**_lookup(row)).delete()
        for row in rows:
            model._base_manager.filter(**_lookup(row)).delete()
    for model, rows in _rows(table, {"rolled back"}).items():
        with transaction.atomic():
            for row in rows[::10]:
                row.save()
            model._base_manager.bulk_create(row for index, row in enumerate(rows) if index % 10)
            transaction.set_rollback(True)


def _lookup(row: Any) -> dict[str, Any]:
    return {"country": row.country, "slug": row.slug} if isinstance(row, Place) else {"pk": row.pk}


# -- one pass


def run(mode: str, chosen: list[Combination], table: list[Combination], template: Path) -> Pass:
    """The answers to what is chosen of the table, in one mode; ``mode`` may begin with ``"asgi-"``."""
    database = settings.DATABASES["default"]["NAME"]
    shutil.rmtree(site.FOLDER / "filters", ignore_errors=True)
    for left in database.parent.glob(f"{database.name}*"):  # the last pass's, with its WAL
        left.unlink()
    shutil.copy(template, database)
    result = site.FOLDER / f"{mode}.pickle"
    child = multiprocessing.get_context("fork").Process(target=_run, args=(mode, chosen, table, result))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the pass {mode!r} of {site.VARIANT!r} ended with {child.exitcode}")
    seen: Pass = pickle.loads(result.read_bytes())
    return seen


def _run(mode: str, chosen: list[Combination], table: list[Combination], result: Path) -> None:
    logging.getLogger("django").setLevel(logging.CRITICAL)
    seen = Pass()
    kind = mode.removeprefix("asgi-")
    middleware = list(site.BARE_MIDDLEWARE)
    if kind in MODES:
        middleware = site.guarded(middleware)
        _arm(kind)
    elif kind in BROKEN:
        middleware = with_broken(kind, middleware)
    settings.MIDDLEWARE = middleware
    after_the_build(table)
    seen.verdicts = _verdicts(table)
    if mode.startswith("asgi-"):
        asyncio.run(_drive_asgi(kind, chosen, seen))
    else:
        _drive_wsgi(kind, chosen, seen)
    seen.rows = dict(_ends(chosen))
    result.write_bytes(pickle.dumps(seen))


def _ends(chosen: list[Combination]) -> Iterator[tuple[str, Any]]:
    """What the requests have left in the database."""
    found = {
        "entry": {str(row.pk): row for row in Entry.objects.all()},
        "note": {row.name: row for row in Note.objects.all()},
        "place": {row.slug: row for row in Place.objects.all()},
    }
    key = {"entry": "pk", "note": "name", "place": "slug"}
    sessions = {session.session_key: session.get_decoded() for session in Session.objects.all()}
    for each in chosen:
        model = each.page.model
        row = found[model].get(each.values[key[model]])
        yield str(each), (row and model_to_dict(row), sessions.get(_session_key(each)))
    yield "old slugs", list(OldSlug.objects.exclude(now="first").values_list("slug", "now"))


def _arm(mode: str) -> None:
    """Register the guards and build their filters; a rebuild's waits take no time."""
    clock = Clock()
    state.table.clock, state.table.sleep = clock, clock.sleep
    for guard in guards_of(mode):
        registry.add(guard)
        Rebuild(guard, sleep=clock.sleep).run()


def _verdicts(table: list[Combination]) -> Counter[str]:
    """What the guards say of IDs that were never there: all absent, but for the error rate."""
    return Counter(
        f"{guard.name}: {'absent' if verdict is Verdict.ABSENT else 'maybe'}"
        for guard in registry
        for each in table
        if each.state == "absent" and each.number % 10 == 0
        for verdict in [guard.verdict(_value(guard.name, each))]
    )


def _value(guard: str, each: Combination) -> Any:
    values = each.values
    return {"entry-slug": values["slug"], "note": values["name"], "place": (values["code"], values["slug"])}.get(
        guard, each.pk
    )


# -- requests


@dataclass
class Request:
    """A combination as it is sent."""

    url: str
    method: str
    address: str
    remote_user: str
    #: Its scheme, headers and body.
    rest: dict[str, Any]


def request_of(each: Combination) -> Request:
    special = dict(KINDS[each.kind])
    address = each.address.replace("{content_type}", str(ContentType.objects.get_for_model(Entry).pk))
    path, _, query = address.partition("?")
    if special.pop("PATH", ""):
        path = path.rstrip("/")
    query = "&".join(filter(None, [query, special.pop("QUERY", "")]))
    cookies = [special.pop("COOKIE")] if "COOKIE" in special else []
    token = special.pop("TOKEN", TOKEN)
    headers = {"Host": "testserver"}
    body = b""
    if each.has_session:
        cookies.append(f"sessionid={_session_key(each)}")
    if each.method == "POST":
        cookies.append(f"csrftoken={TOKEN}")
        headers |= {"X-CSRFToken": token} if token else {}
        body = _form(each)
        headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    scheme, remote = special.pop("SCHEME", "http"), special.pop("ADDRESS", "10.1.2.3")
    remote_user = special.pop("REMOTE_USER", "")
    Maintenance.is_on = bool(special.pop("MAINTENANCE", ""))
    rest = {"scheme": scheme, "headers": {**headers, **special}, "body": body}
    return Request(f"{path}?{query}" if query else path, each.method, remote, remote_user, rest)


def _form(each: Combination) -> bytes:
    """Whatever form it is, of the admin or the site's own, it is filled."""
    form = {
        "title": "Posted",
        "slug": each.values["slug"],
        "name": each.values["name"],
        "day": "2021-01-01",
        "changed_0": "2021-01-01",
        "changed_1": "01:01:01",
        "alive": "on",
        "post": "yes",
    }
    return urlencode(form).encode()


def _drive_wsgi(mode: str, table: list[Combination], seen: Pass) -> None:
    handler = WSGIHandler()
    application = wsgi.shield(handler) if mode == "door" else handler
    get_response = handler.get_response

    def counted(request: Any) -> Any:
        seen.reached += 1
        return get_response(request)

    handler.get_response = counted  # type: ignore[method-assign]
    _note_views(handler, seen)
    with connection.execute_wrapper(_counting(seen)):
        for each in table:
            cache.clear()
            seen.current = str(each)
            seen.answers[str(each)] = [_ask_wsgi(application, request_of(each)) for _ in range(_repeats(each))]


def _note_views(handler: Any, seen: Pass) -> None:
    """Django asks this of a view when no middleware has answered in its place."""
    make_view_atomic = handler.make_view_atomic

    def noting(view: Any) -> Any:
        seen.viewed.add(seen.current)
        return make_view_atomic(view)

    handler.make_view_atomic = noting


def _repeats(each: Combination) -> int:
    return 2 if site.VARIANT == "cache" else each.page.repeat


def _counting(seen: Pass) -> Any:
    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.queries += sql.startswith("SELECT") and "transparency_" in sql
        return execute(sql, params, many, context)

    return wrapper


def _ask_wsgi(application: Any, request: Request) -> Answer:
    environ = {"REMOTE_ADDR": request.address}
    if request.remote_user:
        environ["REMOTE_USER"] = request.remote_user
    sent = len(getattr(mail, "outbox", ()))
    answer = call_wsgi(application, request.url, request.method, **request.rest, **environ)
    return Answer(*answer, len(getattr(mail, "outbox", ())) - sent)


async def _drive_asgi(mode: str, table: list[Combination], seen: Pass) -> None:
    handler = ASGIHandler()
    application = asgi.shield(handler) if mode == "door" else handler
    get_response = handler.get_response_async

    async def counted(request: Any) -> Any:
        seen.reached += 1
        return await get_response(request)

    handler.get_response_async = counted  # type: ignore[method-assign]
    _note_views(handler, seen)
    for each in table:
        cache.clear()
        seen.current = str(each)
        request = await asyncio.to_thread(request_of, each)
        seen.answers[str(each)] = [await _ask_asgi(application, request) for _ in range(_repeats(each))]


async def _ask_asgi(application: Any, request: Request) -> Answer:
    sent = len(getattr(mail, "outbox", ()))
    client = (request.address, 50_000)
    answer = await call_asgi(application, request.url, request.method, **request.rest, client=client)
    return Answer(*answer, len(getattr(mail, "outbox", ())) - sent)


# -- comparing

_NONCE = re.compile(r"'nonce-([\w-]+)'")
_TOKEN = re.compile(rb'(csrfmiddlewaretoken" value="|csrfToken"?: ")\w{64}')
#: A new session's key is as random as a token is; the rest of a cookie's line is compared.
_COOKIE = re.compile(r"^\s*(csrftoken|sessionid)=\w{32,}")
_DIGEST = re.compile(r'^(W/)?"[0-9a-f]{32}"$')
_EXPIRES = re.compile(r"expires=[^;]+")


def normalized(answer: Answer) -> Answer:
    """The answer without what is random or depends on the time of day."""
    body, headers = answer.body, []
    names = {name.lower(): value for name, value in answer.headers}
    if names.get("content-encoding") == "gzip":  # Django pads it at random; the answer to HEAD has its length alone
        body = gzip.decompress(body) if body else body
        names.pop("content-length", None)
    plain = _TOKEN.sub(rb"\1TOKEN", body)
    if nonce := _NONCE.search(names.get("content-security-policy", "")):
        plain = plain.replace(nonce[1].encode(), b"NONCE")
    for name, value in answer.headers:
        lower = name.lower()
        if lower in ("date", "age") or lower not in names:  # seconds, as they pass
            continue
        if lower == "expires":
            value = "TIME"
        elif lower == "set-cookie":
            value = _EXPIRES.sub("expires=TIME", _COOKIE.sub(r"\1=RANDOM", value))
        elif lower == "content-security-policy":
            value = _NONCE.sub("'nonce-NONCE'", value)
        elif lower == "etag" and (plain != body or (not body and _DIGEST.match(value))):
            value = "OF A RANDOM BODY"  # where no body comes along, it may be one
        headers.append((lower, value))
    return Answer(answer.status, sorted(headers), plain, answer.mails)


def difference(bare: Answer, guarded: Answer) -> str:
    """In words, what differs; empty if nothing does but what may."""
    one, other = normalized(bare), normalized(guarded)
    if other.status == 404 and "cache-control" not in dict(one.headers):
        other.headers = [header for header in other.headers if header != ("cache-control", "no-store")]
    found = []
    if one.status != other.status:
        found.append(f"status {one.status} -> {other.status}")
    if lost := [header for header in one.headers if header not in other.headers]:
        found.append(f"headers lost {lost}")
    if new := [header for header in other.headers if header not in one.headers]:
        found.append(f"headers new {new}")
    if one.body != other.body:
        found.append(f"body {_excerpt(one.body, other.body)}")
    if one.mails != other.mails:
        found.append(f"mails {one.mails} -> {other.mails}")
    return ", ".join(found)


def _excerpt(one: bytes, other: bytes) -> str:
    at = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    start = max(0, at - 20)
    return f"{one[start : at + 60]!r} -> {other[start : at + 60]!r}"


def differences(bare: Pass, guarded: Pass) -> list[str]:
    """One line for each combination that is answered otherwise, and for each table that ends otherwise."""
    found = []
    for name, answers in guarded.answers.items():
        for time, (one, other) in enumerate(zip(bare.answers[name], answers), 1):
            if " HEAD " in name:  # a server sends no body, whatever it is given
                one, other = replace(one, body=b""), replace(other, body=b"")
            if words := difference(one, other):
                found.append(f"{name} ({time}): {words}")
    for name, rows in guarded.rows.items():
        if rows != bare.rows[name]:
            found.append(f"{name}: left {bare.rows[name]} -> {rows}")
    return found
