# ruff: noqa: E501
"""Hostile paths: whatever is asked, the status is the one without bloomguard, and never a 500."""

from __future__ import annotations

import asyncio
import io
import random
import urllib.parse
import uuid
from collections import Counter

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections

from bloomguard import middleware
from bloomguard.guards import registry
from tests.shop.models import Article, Diary, Order, Place, Price, Product

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
VALUES = 10_000
KNOWN = uuid.UUID("abcdef01-2345-6789-abcd-ef0123456789")

PREFIXES = [
    b"/products/",
    b"/products-str/",
    b"/products-async/",
    b"/decorated/",
    b"/decorated-async/",
    b"/api/v1/products/",
    b"/orders/",
    b"/orders-str/",
    b"/articles/",
    b"/articles-str/",
    b"/places/DE/",
    b"/places/",
    b"/prices/",
    b"/diary/",
]

DIGITS = ["٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹", "०१२३४५६७८९", "０１２３４５６７８９", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗", "⁰¹²³⁴⁵⁶⁷⁸⁹", "①②③④⑤⑥⑦⑧⑨⑩"]

#: Each of these goes to every route.
NASTY: list[bytes] = [
    *(
        text.encode()
        for text in (

            "", "7", "007", "+7", "-7", "--7", " 7", "7 ", "\t7", "7\n", "7\r\n", "\u20037", "1_0", "_1", "0x7", "7e0", "7.0",
            "7,0", "0", "-0", "00", str(2**31), str(2**40), str(2**63 - 1), str(2**63), str(2**64 - 1), str(2**64), str(2**70),
            str(-(2**63)), str(-(2**63) - 1), str(-(2**70)), "9" * 20, "9" * 4300, "9" * 4301, "0" * 5000 + "7", "1" * 100_000,
            "nan", "NaN", "sNaN", "inf", "-Infinity", "1e5", "1E+1", "1e999", "1e-999", "1e999999999", "1e" + "9" * 40, "0.1",
            "1.50", "1.5", "1.005", "1.0000000000000000000001", "-0.00", ".5", "5.", "1__0", "True", "None", "null", "undefined",
            "\0", "7\0", "\x007", "a\0b", "\x7f", "\x1b[31m", "\ud7ff", "\ue000", "\ufffe", "\uffff", "\U0010ffff", "\ufeff7",
            "\u202e7", "\u200b7", "\u2066abc\u2069", "e\u0301", "é", "ß", "ẞ", "ﬀ", "ı", "İ", "Ａ", "日本", "🦆", "👩‍👩‍👧", "a" * 1_000_000,
            "%", "%37", "%00", "%2e%2e%2f", "%u0037", "%%", "..", "../", "../../etc/passwd", "./7", "7/.", "7/..", "//", "/7", "7//",
            "7/", "\\7", "7\\",
            "7;a=b", "7#x", "7&x=1", "*", "' OR 1=1 --", "\"", "`", "{{7}}", "{%7%}", "${7}", "<script>", "~7",
            str(KNOWN), str(KNOWN).upper(), KNOWN.hex, f"{{{KNOWN}}}", KNOWN.urn, f"{{{KNOWN.hex}}}",
            f"{KNOWN}}}", f"urn:{KNOWN}", str(KNOWN)[:-1], f"{KNOWN}0", f"{KNOWN.hex[:16]}-{KNOWN.hex[16:]}",
            str(KNOWN.int), f" {KNOWN}", str(KNOWN).replace("-", "_"),
            str(KNOWN).translate({ord(d): DIGITS[0][int(d)] for d in "0123456789"}), "0" * 32, "f" * 32,
            "g" * 32, "ulm", "ULM", "ulm ", "u-l-m", "-", "_", "straße", "STRASSE", "2024-02-29", "2024-2-29",
            "20240229", "2023-02-29", "2024-W09-4", "0000-00-00", "0001-01-01", "9999-12-31", "10000-01-01",
            "2024-02-29T00:00", "२०२४-०२-२९", "29.02.2024",
        )
    ),
    *("".join(row[int(digit)] for digit in "7").encode() for row in DIGITS),
    *("".join(row[int(digit)] for digit in "1234567890").encode() for row in DIGITS),
    b"\xff", b"7\xff", b"\xc0\xb7", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"caf\xe9", b"\x80" * 1000, b"\xfe\xff\x007",
    bytes(range(1, 256)),
]  # fmt: skip


def hostile(seed: int, count: int) -> list[bytes]:
    """``count`` raw paths: every nasty value at every route, then random ones; the same for the same seed."""
    rng = random.Random(seed)
    pieces = [value for value in NASTY if len(value) < 200]
    paths = [prefix + value + b"/" for prefix in PREFIXES for value in NASTY]

    def number() -> bytes:
        text = str(rng.choice([rng.randrange(100), rng.getrandbits(rng.randrange(1, 90)), -rng.getrandbits(40)]))
        row = rng.choice([*DIGITS, None, None])
        text = "".join(row[int(c)] if row and c.isdigit() and rng.random() < 0.5 else c for c in text)
        return (
            rng.choice(["", "", "+", " ", "0", "-", "_"]) + text + rng.choice(["", "", " ", "_0", ".0", "\0"])
        ).encode()

    def mutated() -> bytes:
        value = bytearray(rng.choice(pieces) or b"x")
        for _ in range(rng.randrange(1, 4)):
            value[rng.randrange(len(value))] = rng.randrange(256)
        return bytes(value)

    def text() -> bytes:
        kinds = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0x10000, 0x11000), (0x2000, 0x2070)]
        return "".join(chr(rng.randrange(*rng.choice(kinds))) for _ in range(rng.randrange(12))).encode()

    def identifier() -> bytes:
        return str(uuid.UUID(int=rng.getrandbits(128))).encode()[: rng.choice([36, 36, 35, 32, 8])]

    numbers, texts = [b"/products/", b"/products-str/", b"/prices/"], [b"/articles-str/", b"/articles/", b"/places/DE/"]
    kinds = [
        (number, numbers),
        (identifier, [b"/orders/", b"/orders-str/"]),
        (text, texts),
        (mutated, PREFIXES),
        (lambda: rng.randbytes(rng.randrange(1, 24)), texts),
        (lambda: rng.choice(pieces) + rng.choice(pieces), PREFIXES),
        (lambda: b"/".join(rng.choice(pieces) for _ in range(rng.randrange(2, 5))), texts),
    ]
    while len(paths) < count:
        make, likely = rng.choice(kinds)  # at routes that may take it, more often than not
        prefix = rng.choice(likely if rng.random() < 0.7 else PREFIXES)
        paths.append(prefix + make() + rng.choice([b"/", b"/", b"/", b"/", b"", b"//"]))
    return paths


def wsgi_status(handler: WSGIHandler, path: bytes, method: str = "GET") -> int:
    """The status of a request as a WSGI server hands it over: the path's bytes, unquoted, as Latin-1."""
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.decode("latin-1"),
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    statuses: list[str] = []
    response = handler(environ, lambda status, headers: statuses.append(status))
    response.close()
    return int(statuses[0][:3])


async def asgi_status(handler: ASGIHandler, path: bytes) -> int:
    """The status of a request as an ASGI server hands it over: the path decoded, what is no UTF-8 replaced."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path.decode("utf-8", "replace"),
        "raw_path": urllib.parse.quote(path).encode(),
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
        "server": ("testserver", 80),
    }
    sent: list[dict] = []
    over = asyncio.Event()

    async def receive():
        if receive.first:
            receive.first = False
            return {"type": "http.request", "body": b""}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    receive.first = True
    await handler(scope, receive, send)
    return sent[0]["status"]


@pytest.fixture
def shop(build, settings):
    """Some rows of each kind, and filters; the logs of ten thousand 404s go nowhere."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != GUARD]
    for pk in (7, 10, 2**40):
        Product.objects.create(pk=pk)
    Order.objects.create(pk=KNOWN)
    for slug in ("7", "ulm", "straße", "é", "日本", "a" * 200, "\u202e7"):
        Article.objects.create(slug=slug)
    Place.objects.create(country="DE", slug="ulm")
    for amount in ("7", "1.5", "0", "100000"):
        Price.objects.create(amount=amount)
    Diary.objects.create(day="2024-02-29")
    for guard in registry:
        if guard.model._meta.app_label == "shop":
            build(guard.name)


@pytest.fixture
def quiet(caplog):
    """Ten thousand lines of "Not Found" are not kept."""
    caplog.set_level("CRITICAL", logger="django.request")
    caplog.set_level("WARNING", logger="bloomguard")
    return caplog


def handlers(settings, kind):
    """A handler without bloomguard and one with it."""
    bare = kind()
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, GUARD]
    return bare, kind()


@pytest.mark.no_cover  # it takes twice as long
@pytest.mark.timeout(300)
def test_ten_thousand_hostile_paths_under_wsgi(shop, settings, quiet, monkeypatch):
    """Every path has the status that it has without bloomguard; none is a 500; nothing is logged as an error."""
    bare, guarded = handlers(settings, WSGIHandler)
    paths = hostile(seed=2, count=VALUES)
    # The decorated views are decorated in both, so without bloomguard they are asked with every guard silent.
    with monkeypatch.context() as silent:
        for guard in registry:
            silent.setattr(guard, "methods", ())
        expected = [wsgi_status(bare, path) for path in paths]

    answered = Counter()
    not_found = middleware.not_found

    def counted(request, route):
        answered[route.guard.name] += 1
        return not_found(request, route)

    monkeypatch.setattr(middleware, "not_found", counted)
    got = [wsgi_status(guarded, path) for path in paths]

    different = [(path[:80], want, have) for path, want, have in zip(paths, expected, got) if want != have]
    assert different == []
    assert max(got) < 500
    assert quiet.records == []
    assert len(set(paths)) > 0.9 * VALUES
    seen = Counter(expected)
    assert seen[200] > 50
    assert set(answered) == {"product", "order", "article", "place", "price", "diary"}
    assert answered.total() > 1_500


@pytest.mark.no_cover  # it takes twice as long
@pytest.mark.timeout(300)
def test_hostile_paths_under_asgi(shop, settings, quiet, monkeypatch):
    """A sample of them under ASGI, where servers decode the path themselves."""
    bare, guarded = handlers(settings, ASGIHandler)
    paths = random.Random(3).sample(hostile(seed=2, count=VALUES), 300) + [b"/products/%d/" % pk for pk in (7, 8)]

    async def statuses(handler):
        return [await asgi_status(handler, path) for path in paths]

    from asgiref.sync import async_to_sync

    with monkeypatch.context() as silent:
        for guard in registry:
            silent.setattr(guard, "methods", ())
        expected = async_to_sync(statuses)(bare)
    got = async_to_sync(statuses)(guarded)
    connections.close_all()

    assert [(path[:80], *pair) for path, *pair in zip(paths, expected, got) if pair[0] != pair[1]] == []
    assert max(got) < 500
    assert expected[-2:] == [200, 404]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_hostile_paths_with_other_methods(shop, settings, quiet, method):
    """Other methods, too, have the status that they have without bloomguard."""
    bare, guarded = handlers(settings, WSGIHandler)
    paths = [path for path in random.Random(4).sample(hostile(seed=2, count=VALUES), 200) if b"decorated" not in path]

    assert [wsgi_status(guarded, path, method) for path in paths] == [wsgi_status(bare, path, method) for path in paths]
