"""Sites drawn at random answer with guards as they do without: whichever views, patterns, kwargs and routes they have.

A function view is only named in ``routes`` if it answers 404 when the guard's value has no row, as the page on routes
asks; a generic view is named whatever it looks up, as long as all of its code is Django's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pytest
from django.db.models import Model
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.test import Client, override_settings
from django.urls import include, path, re_path
from django.views.generic import DeleteView, DetailView, UpdateView
from rest_framework.generics import RetrieveAPIView
from rest_framework.serializers import ModelSerializer

from bloomguard import middleware
from bloomguard.guards import Guard, registry
from bloomguard.rebuild import Rebuild
from tests.door.site import Wsgi
from tests.shop.models import Article, Bundle, Place, Product, Review
from tests.support import database
from tests.support.guarding import registered, urlconf

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
#: Sites of a test, and requests to each.
SHORT, LONG, REQUESTS = 40, 3_000, 12
LENGTHS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]

#: Each guard's model and lookup; some of them guard one model.
GUARDS: dict[str, tuple[type[Model], Any]] = {
    "product": (Product, "pk"),
    "review": (Review, "pk"),
    "article": (Article, "slug"),
    "article-pk": (Article, "pk"),
    "place": (Place, ("country", "slug")),
}
MODELS = (Product, Bundle, Review, Article, Place)
KWARGS = (
    *("pk", "slug", "id", "name", "country", "product", "product_id", "product_pk", "product_slug", "article"),
    *("article_id", "article_slug", "place", "place_slug", "place_country", "review_id", "review", "number", "page"),
)
#: What the path has for a kwarg; the rows have some of each.
TEXTS = (
    *("1", "2", "3", "4", "5", "6", "7", "01", "0", "-1", "+2", "1_0", "10", "٣", "true", "9223372036854775808", "2.0"),
    *("de", "fr", "DE", "berlin", "paris", "Paris", "x-1", "%20", "%00", "é", "e%CC%81"),
)
CONVERTERS = ("int", "int", "int", "str", "slug")
GROUPS = (r"(?P<%s>[^/]+)/", r"(?P<%s>\d+)/", r"(?:(?P<%s>\d+)/)?", r"(?P<%s>[-\w]*)/")


@pytest.fixture
def rows(each_database: str, fresh: None, hasty: None) -> Iterator[dict[str, Guard]]:
    """The rows that the sites show, and the guards, each with its filter."""
    products = [Product.objects.create(pk=pk, name=name) for pk, name in ((1, "1"), (2, "paris"), (5, "5"))]
    Bundle.objects.create(pk=3, name="bundle")
    articles = [Article.objects.create(pk=pk, slug=slug) for pk, slug in ((1, "paris"), (2, "4"), (4, "é"))]
    for country, slug in (("de", "berlin"), ("fr", "paris"), ("1", "2")):
        Place.objects.create(country=country, slug=slug)
    for pk in (2, 4, 10):
        Review.objects.create(pk=pk, product=products[pk % 3], article=articles[pk % 2])
    with ExitStack() as stack:
        found = {}
        for name, (model, lookup) in GUARDS.items():
            found[name] = stack.enter_context(registered(model, name=f"drawn-{name}", lookup=lookup, methods=["GET"]))
            Rebuild(found[name]).run()
        yield found


@dataclass
class View:
    """A view, the kwargs that it looks up, and the guards that may name it.

    These name the kwargs too, unless they are the usual ones. A pattern of a generic view may have some of ``wanted``,
    and each may have one of ``similar`` beside it.
    """

    callback: Callable[..., Any]
    wanted: tuple[str, ...]
    similar: tuple[str, ...] = ()
    named_by: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_generic: bool = False
    has_own_code: bool = False
    text: str = ""


class Site:
    """One site: everything about it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        #: Few kwargs, so that one often stands where another one is looked up.
        self.kwargs = ["pk", "slug", *self.draw.sample(KWARGS[2:], 4)]
        self.views = [self._view() for _ in range(self.draw.randint(2, 3))]
        self.routes: dict[str, Any] = {name: {} if self._chance(0.7) else "auto" for name in GUARDS}
        #: Of each pattern, its parts and the name of its view.
        self.shapes: list[tuple[list[str], str]] = []
        self.patterns = [
            self._pattern(view, f"v{number}{'-again' if again and self._chance(0.5) else ''}")
            for number, view in enumerate(self.views)
            for again in range(self.draw.randint(1, 2))
        ]
        self.draw.shuffle(self.patterns)
        for number, view in enumerate(self.views):
            self._name(view, f"v{number}")

    def _chance(self, share: float) -> bool:
        return self.draw.random() < share

    # -- views

    def _view(self) -> View:
        kind = self.draw.choice((*[self._function] * 4, *[self._generic] * 4, self._own, self._rest))
        return kind()

    def _function(self) -> View:
        """Looks up one row of a guard's model by the guard's fields, whatever else its path has."""
        name = self.draw.choice(list(GUARDS))
        model, lookup = GUARDS[name]
        fields = lookup if isinstance(lookup, tuple) else (lookup,)
        usual = [("pk", "id", f"{model._meta.model_name}_id")] if lookup == "pk" else [(field,) for field in fields]
        is_usual = self._chance(0.8)
        kwargs = tuple(map(self.draw.choice, usual)) if is_usual else tuple(self.draw.sample(self.kwargs, len(fields)))

        def view(request, **captured):
            values = {field: captured.get(kwarg, 1) for field, kwarg in zip(fields, kwargs, strict=True)}
            found = get_object_or_404(model, **values)
            return HttpResponse(f"{model.__name__} {found.pk} {sorted(captured.items())}")

        named = {name: () if is_usual and self._chance(0.8) else kwargs}
        similar = tuple(each for names in usual for each in names)
        return View(view, kwargs, similar, named, text=f"function of {name} by {kwargs}")

    def _attributes(self) -> dict[str, Any]:
        model = self.draw.choice(MODELS)
        given: dict[str, Any] = {"model": model}
        if self._chance(0.3):
            given["pk_url_kwarg"] = self.draw.choice(self.kwargs)
        if self._chance(0.3):
            given["slug_url_kwarg"] = self.draw.choice(self.kwargs)
        names = [name for each in model._meta.fields for name in (each.name, each.attname)]
        if "slug" not in names or self._chance(0.5):
            given["slug_field"] = self.draw.choice([*names, "pk"])
        if self._chance(0.3):
            given["query_pk_and_slug"] = True
        if self._chance(0.2):
            given["queryset"] = model.objects.filter(pk__lt=self.draw.randint(1, 6))
        return given

    def _generic(self, **methods: Any) -> View:
        """Django's own view, by attributes of a class and arguments of ``as_view()``."""
        base: Any = self.draw.choice((DetailView, DetailView, UpdateView, DeleteView))
        given = self._attributes()
        initial = {name: given.pop(name) for name in list(given) if name != "model" and self._chance(0.3)}
        plain = {"fields": "__all__"} if base is UpdateView else {}

        def render_to_response(self, context, **kwargs):
            return HttpResponse(f"{type(self.object).__name__} {self.object.pk}")

        cls = type("Drawn", (base,), {**given, **plain, **methods, "render_to_response": render_to_response})
        given |= initial
        wanted = tuple(dict.fromkeys((given.get("pk_url_kwarg", "pk"), given.get("slug_url_kwarg", "slug"))))
        text = f"{base.__name__} {given} {[*methods]}"
        return View(cls.as_view(**initial), wanted, is_generic=True, has_own_code=bool(methods), text=text)

    def _own(self) -> View:
        """Has a method of its own, which may look for another row, or answer otherwise for no row."""

        def get_object(self, queryset=None):
            values = [value for value in self.kwargs.values() if str(value).isdecimal()]
            return get_object_or_404(self.model, pk=int(values[-1]) % 6 if values else 1)

        def get_queryset(self):
            return type(self).model._base_manager.exclude(pk=2)

        def setup(self, request, *args, **kwargs):
            super(type(self), self).setup(request, *args, **kwargs)
            self.kwargs = {"pk": 1}

        def dispatch(self, request, *args, **kwargs):
            return redirect("/elsewhere/")

        def get(self, request, *args, **kwargs):
            return HttpResponse("found without a look")

        def get_slug_field(self):
            return "pk"

        own = self.draw.choice((get_object, get_queryset, setup, dispatch, get, get_slug_field))
        return self._generic(**{own.__name__: own})

    def _rest(self) -> View:
        model, lookup = self.draw.choice([(Product, "pk"), (Review, "pk"), (Article, "slug"), (Place, "slug")])
        kwarg = self.draw.choice((None, *self.kwargs))
        meta = type("Meta", (), {"model": model, "fields": "__all__"})
        attributes = {
            "queryset": model.objects.all(),
            "serializer_class": type("Drawn", (ModelSerializer,), {"Meta": meta}),
            "lookup_field": lookup,
            "lookup_url_kwarg": kwarg,
            "authentication_classes": [],
            "permission_classes": [],
        }
        cls = type("DrawnApi", (RetrieveAPIView,), attributes)
        text = f"RetrieveAPIView {model} {lookup} {kwarg}"
        return View(cls.as_view(), (kwarg or lookup,), is_generic=True, text=text)

    # -- patterns

    def _pattern(self, view: View, name: str) -> Any:
        known = [*self.kwargs, *view.similar, *view.similar]
        fixed = {self.draw.choice(known): self.draw.choice((1, "2", "paris"))} if self._chance(0.25) else {}
        count = self.draw.randint(1, len(view.wanted)) if view.is_generic else len(view.wanted)
        wanted = self.draw.sample(view.wanted, count)
        others = self.draw.choices([*known, *view.wanted], k=self.draw.randint(0, 2))
        captured = [name for name in dict.fromkeys((*wanted, *others)) if name not in fixed]
        self.draw.shuffle(captured)
        cut = self.draw.randint(0, len(captured))
        start = f"p{len(self.shapes)}/"
        outer, inner = captured[:cut], captured[cut:]
        if outer and self._chance(0.1):
            inner = [*inner, outer[0]]  # the inner one counts
        first, parts = self._parts(outer), self._parts(inner)
        self.shapes.append(([start, *first[1], *parts[1]], name))
        leaf = self._entry(parts, view.callback, fixed, name)
        if not outer and self._chance(0.7):
            return path(start, include([leaf]))
        return path(start, include([self._entry(first, include([leaf]), {}, None)]))

    def _parts(self, names: list[str]) -> tuple[bool, list[str]]:
        """Whether it is a regular expression, and the text for each kwarg."""
        if self._chance(0.3):
            return True, [self.draw.choice(GROUPS) % name for name in names]
        return False, [f"<{self.draw.choice(CONVERTERS)}:{name}>/" for name in names]

    def _entry(self, parts: tuple[bool, list[str]], view: Any, fixed: dict[str, Any], name: str | None) -> Any:
        is_expression, texts = parts
        text = "".join(texts)
        if is_expression:
            return re_path(f"^{text}{'$' if name else ''}", view, fixed, name=name)
        return path(text, view, fixed, name=name)

    def paths(self) -> Iterator[str]:
        """Paths that the patterns may match."""
        for _ in range(REQUESTS):
            parts, _ = self.draw.choice(self.shapes)
            taken = [parts[0]]
            for part in parts[1:]:
                if not (part.startswith("(?:") and self._chance(0.5)):
                    numbers = "<int" in part or r"\d" in part
                    taken.append(f"{self.draw.choice(TEXTS[:8] if numbers or self._chance(0.3) else TEXTS)}/")
            yield "/" + "".join(taken)

    # -- guards

    def _name(self, view: View, name: str) -> None:
        """Let guards name the view, with a mapping or without."""
        is_djangos = view.is_generic and not view.has_own_code
        for guard, kwargs in (dict.fromkeys(GUARDS, ()) if is_djangos else view.named_by).items():
            if self.routes[guard] != "auto" and self._chance(0.3 if is_djangos else 0.9):
                fields = [each.name for each in registry[f"drawn-{guard}"]._meta.fields]
                self.routes[guard][name] = dict(zip(fields, kwargs, strict=False))

    def __str__(self) -> str:
        views = "\n".join(f"  v{number}: {view.text}" for number, view in enumerate(self.views))
        shapes = "\n".join(f"  {''.join(parts)} -> {name}" for parts, name in self.shapes)
        return f"{views}\n{shapes}\n  {self.routes}"


def shown(status: int, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    """An answer without the header that tells caches not to keep a 404."""
    kept = {name.lower(): value for name, value in headers.items()}
    kept.pop("cache-control", "")
    return status, kept, body


Answers = list[tuple[int, dict[str, str], bytes]]


def answers(urls: list[str], *classes: str) -> Answers:
    """What a client gets from Django with this middleware."""
    with override_settings(MIDDLEWARE=classes):
        client = Client(raise_request_exception=False)
        found = [client.get(url) for url in urls]
    return [shown(each.status_code, each.headers, each.content) for each in found]


def answers_behind_a_door(urls: list[str]) -> tuple[Answers, int]:
    """The same of a site with a door, and the number of requests that the door answered."""
    with override_settings(MIDDLEWARE=[GUARD], ALLOWED_HOSTS=["testserver"]):
        site = Wsgi()
        found = [site(unquote(url)) for url in urls]
    return [shown(each.status, each.headers, each.body) for each in found], len(urls) - len(site.reached)


@pytest.mark.parametrize("sites", LENGTHS)
@pytest.mark.parametrize("place", ["route", "door"])
def test_a_site_answers_as_without_guards(rows, each_database, monkeypatch, place, sites):
    """No row is denied, and no page is another one."""
    blocked = 0
    not_found = middleware.not_found

    def counted(*given):
        nonlocal blocked
        blocked += 1
        return not_found(*given)

    monkeypatch.setattr(middleware, "not_found", counted)
    odd: list[str] = []
    first = 1_000_000 * database.ALL.index(each_database)
    for seed in range(first, first + sites):
        site = Site(seed)
        for name, guard in rows.items():
            guard.routes = site.routes[name]
        registry.replan()
        urls = list(site.paths())
        with override_settings(ROOT_URLCONF=urlconf(*site.patterns)):
            expected = answers(urls)
            if place == "route":
                found = answers(urls, GUARD)
            else:
                found, at_the_door = answers_behind_a_door(urls)
                blocked += at_the_door
        odd += [
            f"seed {seed} {url}: {one} became {other}\n{site}"
            for url, one, other in zip(urls, expected, found, strict=True)
            if one != other
        ]
    assert not odd, "\n\n".join(odd[:5])
    assert blocked > sites / 2
