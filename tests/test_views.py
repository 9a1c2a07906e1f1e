"""Class-based views and REST framework's: the guard where they fetch their object, and the answer their own."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpResponse
from django.test import Client
from django.urls import include, path
from django.views import View
from django.views.generic import DetailView
from rest_framework import permissions, serializers, viewsets
from rest_framework.decorators import api_view
from rest_framework.filters import BaseFilterBackend
from rest_framework.generics import RetrieveAPIView
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from bloomguard import views
from bloomguard.contrib.rest_framework import GuardedObjectMixin as GuardedApiMixin
from bloomguard.decorators import guarded
from bloomguard.guards import guards
from bloomguard.views import GuardedObjectMixin
from tests.guarding import urlconf
from tests.shop.models import Article, Product

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


@pytest.fixture
def shop(build, settings):
    """Product 7, a living and a dead article, their filters, and no middleware, which would answer first."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != GUARD]
    Product.objects.create(pk=7, name="tea")
    Article.objects.create(slug="alive")
    Article.objects.create(slug="dead", deleted=True)
    build("product")
    build("article")


@pytest.fixture
def get(settings):
    """``get(view, url)`` of a view, or of a router, at ``<slug>/`` and ``<pk>/``."""

    def visit(view, url, method="get", **extra):
        if isinstance(view, SimpleRouter):
            patterns = [path("", include(view.urls))]
        else:
            handler = view.as_view() if isinstance(view, type) else view
            patterns = [path("pk/<str:pk>/", handler), path("slug/<str:slug>/", handler), path("", handler)]
        settings.ROOT_URLCONF = urlconf(*patterns)
        return getattr(Client(raise_request_exception=False), method)(url, **extra)

    return visit


class Shown(View):
    """Shows what ``get_object`` gives."""

    def get(self, request, **kwargs):
        return HttpResponse(f"found {self.get_object().pk}")

    def post(self, request, **kwargs):
        return self.get(request)


class ProductDetail(GuardedObjectMixin, Shown, DetailView):
    model = Product


class ArticleDetail(GuardedObjectMixin, Shown, DetailView):
    queryset = Article.objects.filter(deleted=False)


class AllArticles(GuardedObjectMixin, Shown, DetailView):
    model = Article


class BySlugAsPk(GuardedObjectMixin, Shown, DetailView):
    queryset = Article.objects.filter(deleted=False)
    query_pk_and_slug = True
    slug_url_kwarg = "pk"
    pk_url_kwarg = "number"


# -- Django's


def test_an_absent_object_costs_no_query(shop, get, django_assert_num_queries):
    """The page is that of the unguarded view, status and body."""
    usual = get(type("Usual", (Shown, DetailView), {"model": Product}), "/pk/8/")

    with django_assert_num_queries(0):
        answers = [get(ProductDetail, f"/pk/{pk}/") for pk in ("8", "008", 2**70)]

    assert {(answer.status_code, answer.content) for answer in answers} == {(404, usual.content)}


@pytest.mark.parametrize("view", [ArticleDetail, BySlugAsPk])
def test_a_slug_is_guarded_as_well(shop, get, view, django_assert_num_queries):
    """``slug_field`` and the names of the arguments say what is looked up; dead rows are not found, living ones are."""
    where = "pk" if view is BySlugAsPk else "slug"
    with django_assert_num_queries(0):
        assert get(view, f"/{where}/none/").status_code == 404
    assert get(view, f"/{where}/dead/").status_code == 404
    assert get(view, f"/{where}/alive/").content.startswith(b"found")


def test_an_object_that_exists_costs_its_one_query(shop, get, django_assert_num_queries):
    """Nothing is asked twice."""
    with django_assert_num_queries(1):
        assert get(ProductDetail, "/pk/7/").content == b"found 7"


def test_rows_that_the_guard_does_not_know_stay_in_reach(shop, get, django_assert_num_queries):
    """A view of all rows shows the dead ones, and its 404 is the database's."""
    with django_assert_num_queries(1):
        assert get(AllArticles, "/slug/dead/").content.startswith(b"found")
    with django_assert_num_queries(1):
        assert get(AllArticles, "/slug/none/").status_code == 404


def test_one_view_for_two_audiences(shop, get, monkeypatch, django_assert_num_queries):
    """The queryset of each request decides: staff see dead rows, the public's misses cost nothing."""

    class Detail(GuardedObjectMixin, Shown, DetailView):
        def get_queryset(self):
            rows = Article.objects.all()
            return rows if self.request.headers.get("X-Staff") else rows.filter(deleted=False)

    assert get(Detail, "/slug/dead/", headers={"X-Staff": "1"}).status_code == 200
    assert get(Detail, "/slug/dead/").status_code == 404
    with django_assert_num_queries(0):
        assert get(Detail, "/slug/none/").status_code == 404


def test_other_methods_and_requests_that_the_guard_does_not_mind(shop, get, monkeypatch, django_assert_num_queries):
    """``methods`` and ``applies`` hold here too: the database answers."""
    monkeypatch.setattr(guards["product"], "applies", lambda request: "preview" not in request.GET)
    for method, url in (("post", "/pk/8/"), ("get", "/pk/8/?preview=1")):
        with django_assert_num_queries(1):
            assert get(ProductDetail, url, method).status_code == 404


def test_an_error_inside_is_logged_once_and_the_view_answers(shop, get, monkeypatch, caplog):
    """What goes wrong in the guard is no 500."""

    def fail(request):
        raise RuntimeError("oops")

    views._complaints.forget()
    monkeypatch.setattr(guards["product"], "applies", fail)
    with caplog.at_level(logging.ERROR, logger="bloomguard"):
        statuses = [get(ProductDetail, "/pk/8/").status_code for _ in range(3)]

    assert statuses == [404] * 3
    assert [record.name for record in caplog.records] == ["bloomguard"]


def test_mistakes_of_a_view_stay_its_own(shop, get):
    """Without an argument that says which object, or with one that does not convert, Django complains as ever."""
    assert get(ProductDetail, "/").status_code == 500
    assert get(ProductDetail, "/pk/tea/").status_code == 500


def test_without_a_filter_the_view_answers(fresh, db, get):
    """UNKNOWN asks the database."""
    Product.objects.create(pk=7)

    assert [get(ProductDetail, f"/pk/{pk}/").status_code for pk in (7, 8)] == [200, 404]


# -- REST framework's


class ProductSerializer(serializers.ModelSerializer):
    class Meta:
        model = Product
        fields = ["id", "name"]


class Settled(viewsets.ModelViewSet):
    """No database behind authentication."""

    authentication_classes = []
    serializer_class = ProductSerializer
    queryset = Product.objects.all()


class Guarded(GuardedApiMixin, Settled):
    pass


def router(viewset, prefix="pk"):
    made = SimpleRouter()
    made.register(prefix, viewset, basename="thing")
    return made


def test_an_api_answers_its_own_404(shop, get, django_assert_num_queries):
    """Status, body and type are those of the unguarded viewset, without a query."""
    usual = get(router(Settled), "/pk/8/")

    with django_assert_num_queries(0):
        answer = get(router(Guarded), "/pk/8/")

    assert (answer.status_code, answer.json()) == (404, {"detail": "No Product matches the given query."})
    assert (answer.content, answer.headers) == (usual.content, usual.headers)


def test_an_api_serves_what_exists(shop, get, django_assert_num_queries):
    """A row costs its one query, a list is left alone, and other methods go to the database."""
    with django_assert_num_queries(1):
        assert get(router(Guarded), "/pk/7/").json() == {"id": 7, "name": "tea"}
    with django_assert_num_queries(1):
        assert len(get(router(Guarded), "/pk/").json()) == 1
    with django_assert_num_queries(1):
        assert get(router(Guarded), "/pk/8/", "delete").status_code == 404
    assert get(router(Guarded), "/pk/tea/").status_code == 404


def test_permissions_come_first(shop, get):
    """Who may not ask learns nothing of what exists."""

    class Closed(Guarded):
        permission_classes = [permissions.IsAuthenticated]

    assert get(router(Closed), "/pk/8/").status_code == get(router(Closed), "/pk/7/").status_code == 403


def test_lookup_fields_and_querysets_of_a_request(shop, get, django_assert_num_queries):
    """``lookup_field`` and ``lookup_url_kwarg`` say what is looked up; ``get_queryset`` and filters, where."""

    class Alive(BaseFilterBackend):
        def filter_queryset(self, request, queryset, view):
            return queryset if request.GET.get("all") else queryset.filter(deleted=False)

    class ArticleSerializer(serializers.ModelSerializer):
        class Meta:
            model = Article
            fields = ["slug"]

    class Detail(GuardedApiMixin, RetrieveAPIView):
        authentication_classes = []
        serializer_class = ArticleSerializer
        lookup_field = "slug"
        lookup_url_kwarg = "pk"
        filter_backends = [Alive]

        def get_queryset(self):
            return Article.objects.all()

    with django_assert_num_queries(0):
        assert get(Detail, "/pk/none/").status_code == 404
    with django_assert_num_queries(1):
        assert get(Detail, "/pk/none/?all=1").status_code == 404
    assert get(Detail, "/pk/dead/?all=1").json() == {"slug": "dead"}
    assert get(Detail, "/pk/dead/").status_code == 404


def test_an_iterable_for_a_queryset_is_left_alone(shop, get):
    """REST framework takes a list, of which no guard knows anything."""

    class Listed(GuardedApiMixin, RetrieveAPIView):
        authentication_classes = []
        serializer_class = ProductSerializer
        filter_backends = []

        def get_queryset(self):
            return [Product(pk=8)]

        def get_object(self):
            try:
                return super().get_object()
            except (AttributeError, ValueError) as error:
                raise Http404 from error

    assert get(Listed, "/pk/8/").status_code == 404


def test_guarded_on_methods_of_an_api(shop, get, django_assert_num_queries):
    """``@guarded`` on a viewset's method, or below ``api_view``: the answer is REST framework's, kept by nobody."""

    class Decorated(Settled):
        @guarded("product")
        def retrieve(self, request, pk=None):
            return super().retrieve(request, pk=pk)

    @api_view(["GET"])
    @guarded("product")
    def function(request, pk):
        request.user = AnonymousUser()
        return Response({"seen": pk})

    for view in (router(Decorated), function):
        with django_assert_num_queries(0):
            answer = get(view, "/pk/8/", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()) == (404, {"detail": "no such product"})
        assert answer["Cache-Control"] == "no-store"
        assert get(view, "/pk/7/", headers={"Accept": "application/json"}).status_code == 200
