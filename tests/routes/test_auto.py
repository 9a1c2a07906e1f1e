"""``routes = "auto"`` takes a view only if everything up to its query is Django's own."""

from __future__ import annotations

import abc
import itertools

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.db.models import (
    BooleanField,
    CharField,
    Count,
    Exists,
    F,
    Func,
    Lookup,
    Manager,
    OuterRef,
    Q,
    QuerySet,
    Value,
)
from django.db.models.fields import AutoField, BigAutoField
from django.db.models.functions import Now
from django.db.models.lookups import Exact
from django.db.models.query import ModelIterable
from django.http import Http404, HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, re_path
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.generic import CreateView, DeleteView, DetailView, FormView, TemplateView, UpdateView
from django.views.generic.detail import BaseDetailView, SingleObjectMixin
from django.views.generic.edit import BaseDeleteView, BaseUpdateView
from django.views.generic.list import MultipleObjectMixin

from bloomguard.routes.discovery import why_not_found
from bloomguard.routes.explain import rows_of_pattern
from bloomguard.routes.patterns import patterns
from bloomguard.routes.table import guarded_routes, table_for
from tests.shop.models import Bargain, Product, Review, Tag
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


class Shown:
    model = Product

    def render_to_response(self, context, **kwargs):
        return HttpResponse("found")


class Detail(Shown, DetailView):
    pass


@pytest.fixture
def guard(settings):
    settings.MIDDLEWARE = [GUARD]
    with registered(Product, name="auto", routes="auto") as found:
        yield found


def taken(settings, guard, view, route="p/<int:pk>/", extra=None):
    """The kwarg that the guard takes from the view's pattern; the reason if it leaves the view alone."""
    settings.ROOT_URLCONF = urlconf(path(route, view, extra or {}, name="view"))
    [pattern] = patterns()
    reason, routes = why_not_found(guard, pattern), guarded_routes(guard)
    assert len(routes) == (not reason)
    return reason or routes[0].kwargs


# -- the view's own methods


class Friendly(Shown, SingleObjectMixin, TemplateView):
    """Has a page of its own for no row."""

    def get_context_data(self, **kwargs):
        try:
            self.object = self.get_object()
        except Http404:
            self.object = None
        return super().get_context_data(**kwargs)


class Plain(SingleObjectMixin, TemplateView):
    model = Product


class Form(Shown, SingleObjectMixin, FormView):
    def get_form(self, form_class=None):
        return None


class Listed(MultipleObjectMixin, Detail):
    """The queryset of a list."""


class Transformed(Detail):
    """Looks up another value than the path has."""

    @property
    def kwargs(self):
        return {"pk": 7}

    @kwargs.setter
    def kwargs(self, value):
        pass


class ReplacedByClass(Detail):
    class get_object:
        pk = 7


class Meta(type(DetailView)):
    def __call__(cls, **kwargs):
        raise PermissionDenied


class OfMeta(Detail, metaclass=Meta):
    pass


class Slugged(Detail):
    def get_slug_field(self):
        return "name__iexact"


class AsyncGet(Shown, SingleObjectMixin, View):
    async def get(self, request, *args, **kwargs):
        return HttpResponse("found")


def disguised(request, pk):
    return HttpResponse("found")


disguised.view_class, disguised.view_initkwargs = Detail, {}


class Given(Detail):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.get_queryset = lambda: Product.objects.none()


@pytest.mark.parametrize(
    "view",
    [
        Friendly.as_view(),
        Plain.as_view(),
        Form.as_view(),
        Listed.as_view(),
        Transformed.as_view(),
        ReplacedByClass.as_view(),
        Slugged.as_view(),
        AsyncGet.as_view(),
        CreateView.as_view(model=Product, fields=["name"]),
        disguised,
        Given.as_view(),
        Detail.as_view(get_object=lambda: None),
        Detail.as_view(get_object=ReplacedByClass.get_object),
        OfMeta.as_view(),
    ],
    ids=lambda view: getattr(view, "view_class", view).__name__,
)
def test_a_view_is_taken_only_if_djangos_code_looks_up_its_row_first(settings, guard, view):
    """Whatever runs before the lookup, or instead of it, may have another answer than 404."""
    assert isinstance(taken(settings, guard, view), str)
    assert guarded_routes(guard) == []


@pytest.mark.parametrize("public", [None, True])
def test_the_page_for_no_row_is_the_views_own(settings, build, guard, public, db):
    """``get_context_data`` of a view whose ``get`` does not look up the row runs before the lookup."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", Friendly.as_view(), name="view"))
    with (
        registered(Product, name="named", routes=["view"]) as named,
        registered(Product, name="open", routes="auto", public=public),
    ):
        build("named")
        build("open")
        assert Client().get("/p/99/").status_code == 200
        assert [route.closed for route in guarded_routes(named)] == ["Friendly.get_context_data runs first"]


class After(Detail):
    """Overrides what runs when the row was found, or for other requests."""

    def get_context_data(self, **kwargs):
        raise PermissionDenied

    def http_method_not_allowed(self, request, *args, **kwargs):
        raise PermissionDenied

    def post(self, request, *args, **kwargs):
        raise PermissionDenied

    object = None


@pytest.mark.parametrize(
    "view",
    [
        Detail.as_view(),
        After.as_view(),
        UpdateView.as_view(model=Product, fields=["name"]),
        DeleteView.as_view(model=Product),
        type("OwnDetail", (Shown, BaseDetailView), {}).as_view(),
        type("OwnUpdate", (Shown, BaseUpdateView), {"fields": ["name"]}).as_view(),
        type("OwnDelete", (Shown, BaseDeleteView), {}).as_view(),
        type("Abstract", (Detail, abc.ABC), {}).as_view(),
    ],
    ids=lambda view: view.view_class.__name__,
)
def test_djangos_generic_views_of_one_object_are_taken(settings, guard, view):
    """All whose ``get`` begins with ``get_object()``."""
    assert taken(settings, guard, view) == ("pk",)


# -- managers


class Strict(Manager):
    """Decides for each request."""

    def get_queryset(self):
        raise PermissionDenied


class Undeleted(Manager):
    def get_queryset(self):
        return super().get_queryset().exclude(name="deleted")


class AllOfIt(Manager):
    def all(self):
        return self.none()


class Greeting(Manager):
    """Adds names, and writes in its own way."""

    use_in_migrations = True

    def greet(self):
        return "hello"

    def create(self, **kwargs):
        return super().create(**{"name": "new", **kwargs})


class CaseInsensitive(QuerySet):
    def filter(self, *args, **kwargs):
        raise PermissionDenied


class Cached(QuerySet):
    def _fetch_all(self):
        self._result_cache = []


class Elsewhere(QuerySet):
    @property
    def db(self):
        return "elsewhere"


class Softly(QuerySet):
    """Adds names, and deletes in its own way."""

    def delete(self):
        return self.update(name="deleted")

    def named(self, name):
        return self.filter(name=name)


class Mixin:
    def get(self, *args, **kwargs):
        raise PermissionDenied


class Mixed(Mixin, QuerySet):
    pass


class OwnModelIterable(ModelIterable):
    def __iter__(self):
        raise PermissionDenied


def own_instance():
    manager = Manager()
    manager.get_queryset = lambda: None
    return manager


OWN_MANAGERS = {
    "Strict.get_queryset": Strict,
    "Undeleted.get_queryset": Undeleted,
    "AllOfIt.all": AllOfIt,
    "Manager().get_queryset": own_instance,
    "CaseInsensitive.filter": CaseInsensitive.as_manager,
    "Cached._fetch_all": Manager.from_queryset(Cached),
    "Elsewhere.db": Elsewhere.as_manager,
    "Mixin.get": Mixed.as_manager,
}


@pytest.fixture
def managed(monkeypatch):
    """``managed(manager)`` is the default manager of products."""

    def use(manager):
        manager.model, manager.name = Product, "objects"
        monkeypatch.setitem(Product._meta.__dict__, "default_manager", manager)

    return use


@pytest.mark.parametrize("own", OWN_MANAGERS)
def test_a_manager_of_the_project_decides_at_each_request(settings, guard, managed, own):
    """The view runs, and ``guard_routes`` says why; none of the manager's code runs to find that out."""
    managed(OWN_MANAGERS[own]())
    reason = taken(settings, guard, Detail.as_view())

    assert reason == f"the manager Product.objects is the project's: {own}"
    [row] = [row for row in rows_of_pattern(table_for(), patterns_of_site()) if row.guard == "auto"]
    assert (row.answered, row.reason) == ("lookup", f"its view's own query; not before the view: {reason}")


def patterns_of_site():
    [pattern] = table_for().patterns
    return pattern


@pytest.mark.parametrize("manager", [Manager, Greeting, Softly.as_manager, Greeting.from_queryset(Softly)])
def test_managers_that_only_add_names_are_taken(settings, guard, managed, manager):
    """Also those that write in their own way: a view of one object writes nothing before its lookup."""
    managed(manager())

    assert taken(settings, guard, Detail.as_view()) == ("pk",)


def test_a_manager_that_refuses_is_asked_at_each_request(settings, build, guard, managed, db):
    """403 stays 403."""
    build("auto")
    managed(Strict())
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", Detail.as_view()))

    assert Client().get("/p/99/").status_code == 403


def test_the_lookup_of_a_soft_delete_manager_is_answered(settings, build, guard, managed, django_assert_num_queries):
    """What the manager sends is a query for one row as well."""
    build("auto")
    managed(Undeleted())
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", Detail.as_view()))

    with django_assert_num_queries(0):
        assert Client().get("/p/99/").status_code == 404


# -- querysets


class OrNull(Lookup):
    lookup_name = "ornull"

    def as_sql(self, compiler, connection):
        left, mine = self.process_lhs(compiler, connection)
        right, theirs = self.process_rhs(compiler, connection)
        return f"{left} = {right} OR {left} IS NOT NULL", [*mine, *theirs]


def of_iterable():
    rows = Product.objects.all()
    rows._iterable_class = OwnModelIterable
    return rows


def of_instance():
    rows = Product.objects.all()
    rows.all = lambda: None
    return rows


OWN_QUERYSETS = {
    "another database": lambda: Product.objects.using("postgresql"),
    "own filter": lambda: CaseInsensitive(Product),
    "own instance": of_instance,
    "own iterable": of_iterable,
    "a manager": lambda: Product.objects,
    "an annotation for the key": lambda: Product.objects.annotate(pk=F("id") + 1),
    "HAVING": lambda: Product.objects.filter(Exact(Count("review"), 0)),
    "SQL of the project": lambda: Product.objects.filter(
        Func(Value(1), template="1=1 OR %(expressions)s", output_field=BooleanField())
    ),
    "extra SQL": lambda: Product.objects.extra(where=["1/0 = 1"]),
    "a value of each request": lambda: Product.objects.filter(name=SimpleLazyObject(str)),
    "in a subquery": lambda: Product.objects.filter(
        review__in=Review.objects.filter(article__slug__in=["a", SimpleLazyObject(str)])
    ),
}


@pytest.mark.parametrize("own", OWN_QUERYSETS)
def test_a_queryset_is_taken_only_if_it_is_the_same_in_each_request(settings, guard, own):
    """Of the guard's database, of Django's own classes, with plain values."""
    assert isinstance(taken(settings, guard, Detail.as_view(queryset=OWN_QUERYSETS[own]())), str)


def test_a_lookup_of_the_project_is_not_known(settings, guard):
    """Its SQL may find more than the rows of the key."""
    CharField.register_lookup(OrNull)
    try:
        rows = Product.objects.filter(name__ornull="x")
        assert taken(settings, guard, Detail.as_view(queryset=rows)) == "its queryset has code of the project's own"
    finally:
        CharField._unregister_lookup(OrNull)


@pytest.mark.parametrize("field", [BigAutoField, AutoField])
def test_an_exact_lookup_of_the_project_is_not_known(settings, guard, field):
    """What it compares is its own business."""
    own = type("Own", (Exact,), {})
    before = Product._meta.pk.get_lookup("exact")
    Product._meta.pk.register_lookup(own, "exact")
    try:
        assert taken(settings, guard, Detail.as_view()) == "shop.Product.id compares values in the project's own way"
    finally:
        Product._meta.pk._unregister_lookup(own, "exact")
    assert Product._meta.pk.get_lookup("exact") is before


@pytest.mark.parametrize(
    "rows",
    [
        Product.objects.filter(name="tea"),
        Product.objects.filter(name__in=["tea", "milk"]).exclude(pk__lt=3),
        Product.objects.filter(Q(name="tea") | Q(name__istartswith="m")),
        Product.objects.annotate(reviews=Count("review")),
        Product.objects.filter(Exists(Review.objects.filter(product=OuterRef("pk")))),
        Product.objects.filter(review__article__slug=F("name")).select_related("bundle").order_by("name"),
        Product.objects.filter(name__lt=Now()),
        Bargain.objects.only("name"),
        Product.objects.using("default"),
        Softly(Product).named("tea"),
    ],
    ids=range(10),
)
def test_narrower_querysets_of_djangos_own_are_taken(settings, guard, rows, db):
    """What the guard knows to be absent is absent in them too."""
    assert taken(settings, guard, Detail.as_view(queryset=rows)) == ("pk",)


class ReadsElsewhere:
    def db_for_read(self, model, **hints):
        return "postgresql" if model is Bargain else None


def test_a_model_that_is_read_elsewhere_is_left_alone(settings, guard):
    """The router sends the view to another database than that of the guard."""
    settings.DATABASE_ROUTERS = [f"{__name__}.ReadsElsewhere"]
    reason = taken(settings, guard, Detail.as_view(model=Bargain))

    assert reason == "its queryset reads the database 'postgresql'"
    assert taken(settings, guard, Detail.as_view()) == ("pk",)


class ReadsReplicas:
    """Chooses another replica each time."""

    turn = itertools.cycle(["postgresql", "default"])

    def db_for_read(self, model, **hints):
        return next(self.turn)


def test_the_router_may_choose_another_database_for_each_request(settings, guard):
    """It is asked again when the request comes; only a queryset that names its database is bound to that."""
    settings.DATABASE_ROUTERS = [f"{__name__}.ReadsReplicas"]

    assert [taken(settings, guard, Detail.as_view(model=Product)) for _ in range(4)] == [("pk",)] * 4
    elsewhere = Detail.as_view(queryset=Product.objects.using("mariadb"))
    assert taken(settings, guard, elsewhere) == "its queryset reads the database 'mariadb'"


# -- which kwarg is looked up


@pytest.mark.parametrize(
    ("given", "route", "extra", "found"),
    [
        ({"pk_url_kwarg": "number"}, "p/<int:number>/<int:pk>/", {}, ("number",)),
        ({"slug_field": "id", "slug_url_kwarg": "number"}, "p/<int:number>/", {}, ("number",)),
        ({"slug_field": "name", "query_pk_and_slug": True}, "p/<int:pk>/<slug:slug>/", {}, ("pk",)),
        # The primary key twice, under both of its names: if one of the two has no row, there is none to find.
        ({"slug_field": "id", "query_pk_and_slug": True}, "p/<int:pk>/<int:slug>/", {}, ("pk",)),
        ({"slug_field": "pk", "query_pk_and_slug": True}, "p/<int:pk>/<int:slug>/", {}, ("pk",)),
        ({"slug_field": "name"}, "p/<int:pk>/<slug:slug>/", {}, ("pk",)),
        # The view looks up the primary key that the URLconf sets, whatever the slug.
        ({"slug_field": "id"}, "p/<int:slug>/", {"pk": 7}, ("pk",)),
        ({"slug_field": "name"}, "p/<slug:slug>/", {}, "its view looks up name, and the guard 'auto' id"),
        ({"slug_field": "nothing"}, "p/<slug:slug>/", {}, "its view looks up nothing, and the guard 'auto' id"),
        ({"slug_field": "id__lte"}, "p/<int:slug>/", {}, "its view looks up id__lte, and the guard 'auto' id"),
    ],
)
def test_the_kwarg_is_the_one_that_the_view_looks_up(settings, guard, given, route, extra, found):
    """As ``get_object`` chooses it."""
    assert taken(settings, guard, Detail.as_view(**given), route, extra) == found


def test_an_optional_primary_key_leaves_the_slug_to_the_view(settings, guard):
    """Without the ID in the path the view looks up the slug."""
    settings.ROOT_URLCONF = urlconf(re_path(r"^(?:(?P<pk>\d+)/)?(?P<slug>x)$", Detail.as_view(slug_field="id")))

    [route] = guarded_routes(guard)
    assert route.kwargs == ("pk",)


@pytest.mark.parametrize("prefix", [False, True], ids=["plain", "by language"])
@pytest.mark.parametrize("name", ["product", None], ids=["one name", "unnamed"])
@pytest.mark.parametrize(
    ("other", "fixed", "url"),
    [
        ("p/<int:pk>/<slug:slug>/", {}, "/p/7/wrong/"),
        ("q/<slug:slug>/", {"pk": 7}, "/q/wrong/"),
        ("q/<int:pk>/", {}, "/q/7/"),
        ("q/<slug:slug>/", {}, "/q/tea/"),
    ],
)
def test_a_view_under_two_patterns_looks_up_what_the_pattern_of_the_request_has(
    settings, build, db, other, fixed, url, name, prefix
):
    """Under the one a guard answers by the slug; under the other the view ignores it."""
    Tag.objects.create(pk=7, title="tea")
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", GUARD]
    view = Detail.as_view(model=Tag, slug_field="title")
    patterns = path("p/<slug:slug>/", view, name=name), path(other, view, fixed, name=name)
    settings.ROOT_URLCONF = urlconf(*(i18n_patterns(*patterns) if prefix else patterns))
    start = "/de" if prefix else ""
    with registered(Tag, name="tag", lookup="title", routes="auto", lookups=False):
        build("tag")

        assert Client().get(f"{start}{url}").status_code == 200
        with CaptureQueriesContext(connection) as queries:
            assert Client().get(f"{start}/p/absent/").status_code == 404
        assert len(queries) == 0


class OwnRow(Detail):
    def get_object(self, queryset=None):
        return Tag.objects.get(title=self.kwargs["slug"])


class OwnRows(Detail):
    def get_queryset(self):
        return Tag.objects.filter(made="made-by-default")


@pytest.mark.parametrize("public", [None, True])
@pytest.mark.parametrize(
    ("view", "route", "url", "closed"),
    [
        (Detail.as_view(model=Tag), "p/<int:pk>/<slug:title>/", "/p/7/old/", "its view looks up pk of shop.Tag"),
        (Detail.as_view(model=Tag, slug_url_kwarg="title", slug_field="shout"), "p/<slug:title>/", "/p/LOUD/", "shout"),
        (Detail.as_view(slug_url_kwarg="title", slug_field="name"), "p/<slug:title>/", "/p/soap/", "of shop.Product"),
        (Detail.as_view(model=Tag, slug_url_kwarg="title", slug_field="title"), "p/<slug:title>/", "/p/tea/", ""),
        (OwnRows.as_view(model=Tag, slug_url_kwarg="title", slug_field="title"), "p/<slug:title>/", "/p/tea/", "get_q"),
        (OwnRow.as_view(model=Tag), "p/<slug:slug>/<slug:title>/", "/p/tea/tea/", "OwnRow.get_object runs first"),
    ],
)
def test_a_named_view_whose_lookup_is_known_to_be_another_is_left_alone(
    settings, build, db, view, route, url, closed, public
):
    """A slug beside a primary key is only for readers; the project's own lookups are its own promise."""
    Tag.objects.create(pk=7, title="tea", shout="loud")
    Product.objects.create(name="soap")
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path(route, view, name="tag"))
    with registered(Tag, name="tag", lookup="title", routes=["tag"], public=public) as guard:
        build("tag")
        [found] = guarded_routes(guard)

        assert Client().get(url).status_code == 200
    if public and (view.view_class is not Detail):
        closed = ""
    assert closed in found.closed
    assert bool(closed) is bool(found.closed)
