"""Which views a guard answers for before they run: only those that nothing unknown stands in front of."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from braces.views import LoginRequiredMixin as BracesLoginRequired
from django.contrib import admin
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth.decorators import (
    login_not_required,
    login_required,
    permission_required,
    user_passes_test,
)
from django.contrib.auth.mixins import LoginRequiredMixin, PermissionRequiredMixin, UserPassesTestMixin
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.core.handlers.base import BaseHandler
from django.http import Http404, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import aget_object_or_404, get_object_or_404
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import translation
from django.utils.decorators import decorator_from_middleware, method_decorator
from django.utils.functional import SimpleLazyObject, cached_property
from django.views import View
from django.views.decorators.cache import cache_control, cache_page, never_cache
from django.views.decorators.clickjacking import (
    xframe_options_deny,
    xframe_options_exempt,
    xframe_options_sameorigin,
)
from django.views.decorators.common import no_append_slash
from django.views.decorators.csrf import csrf_exempt, csrf_protect, ensure_csrf_cookie, requires_csrf_token
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import (
    condition,
    conditional_page,
    etag,
    require_GET,
    require_http_methods,
    require_POST,
    require_safe,
)
from django.views.decorators.vary import vary_on_cookie, vary_on_headers
from django.views.generic import CreateView, DeleteView, DetailView, RedirectView, UpdateView
from django.views.generic.dates import DateDetailView
from guardian.decorators import permission_required_or_403
from guardian.mixins import LoginRequiredMixin as GuardianLoginRequired
from guardian.mixins import PermissionRequiredMixin as GuardianPermissionRequired
from rest_framework import exceptions, generics, permissions, serializers
from rest_framework.decorators import api_view

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.routes.openness import are_passing
from bloomguard.routes.table import guarded_routes, table_for
from bloomguard.signals import request_blocked
from tests.shop.models import Article, Bargain, Diary, Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    GUARD,
]


class Shown:
    def render_to_response(self, context, **kwargs):
        return HttpResponse("a product")


class Detail(Shown, DetailView):
    model = Product


def function(request, pk):
    get_object_or_404(Product, pk=pk)
    return HttpResponse("a product")


async def afunction(request, pk):
    await aget_object_or_404(Product, pk=pk)
    return HttpResponse("a product")


# -- what demands something of a stranger


def wrapped(view):
    @functools.wraps(view)
    def inner(request, *args, **kwargs):
        if not request.user.is_authenticated:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return inner


def unwrapped(view):
    def inner(request, *args, **kwargs):
        if not request.user.is_authenticated:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return inner


def disguised(view):
    """Not wrapped, with the attributes of a class-based view."""
    inner = unwrapped(view)
    inner.view_class, inner.view_initkwargs = view.view_class, view.view_initkwargs
    return inner


class Callable:
    def __call__(self, request, pk):
        return unwrapped(function)(request, pk)


class Middleware:
    """As ``decorator_from_middleware`` takes it."""

    def __init__(self, get_response):
        pass

    def process_view(self, request, view, args, kwargs):
        if not request.user.is_authenticated:
            raise PermissionDenied


class OwnDispatch(Detail):
    def dispatch(self, request, *args, **kwargs):
        if not request.user.is_authenticated:
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)


class OwnSetup(Detail):
    def setup(self, request, *args, **kwargs):
        super().setup(request, *args, **kwargs)
        if not request.user.is_authenticated:
            raise PermissionDenied


class OwnGet(Detail):
    def get(self, request, *args, **kwargs):
        if not request.user.is_authenticated:
            raise PermissionDenied
        return super().get(request, *args, **kwargs)


class OwnQueryset(Detail):
    def get_queryset(self):
        if not self.request.user.is_authenticated:
            raise PermissionDenied
        return super().get_queryset()


class OwnObject(Detail):
    def get_object(self, queryset=None):
        if not self.request.user.is_authenticated:
            raise PermissionDenied
        return super().get_object(queryset)


class OwnInit(Detail):
    def __init__(self, **kwargs):
        raise PermissionDenied


class InAsView(Detail):
    @classmethod
    def as_view(cls, **kwargs):
        return wrapped(super().as_view(**kwargs))


class InAsViewWithoutWraps(Detail):
    @classmethod
    def as_view(cls, **kwargs):
        return disguised(super().as_view(**kwargs))


class QuerysetProperty(Detail):
    model = None

    @property
    def queryset(self):
        if not self.request.user.is_authenticated:
            raise PermissionDenied
        return Product.objects.all()


class ModelProperty(Detail):
    @cached_property
    def model(self):
        if not self.request.user.is_authenticated:
            raise PermissionDenied
        return Product


@method_decorator(login_required, name="dispatch")
class Decorated(Detail):
    pass


class DecoratedMethod(Detail):
    @method_decorator(login_required)
    def get(self, *args, **kwargs):
        return super().get(*args, **kwargs)


class LoginGet(View):
    @method_decorator(login_required)
    def get(self, request, pk):
        return function(request, pk)


class StaffGet(View):
    def get(self, request, pk):
        if not request.user.is_staff:
            raise PermissionDenied
        return super().get(request, pk)


class BehindStaffGet(StaffGet, LoginGet):
    pass


class Braces(BracesLoginRequired, Detail):
    raise_exception = True


class ByTest(UserPassesTestMixin, Detail):
    def test_func(self):
        return self.request.user.is_staff


class Serializer(serializers.ModelSerializer):
    class Meta:
        model = Product
        fields = ("id",)


class Api(generics.RetrieveAPIView):
    queryset = Product.objects.all()
    serializer_class = Serializer


class Initial(Api):
    def initial(self, request, *args, **kwargs):
        super().initial(request, *args, **kwargs)
        if not request.user.is_authenticated:
            raise exceptions.PermissionDenied


class CheckPermissions(Api):
    def check_permissions(self, request):
        if not request.user.is_authenticated:
            raise exceptions.PermissionDenied


class Permitted(Api):
    permission_classes = (permissions.IsAuthenticated,)


@api_view()
def api_function(request, pk):
    if not request.user.is_authenticated:
        raise exceptions.PermissionDenied
    return function(request, pk)


def of(cls, **attributes):
    """A view of one product behind a mixin."""
    return type("View", (cls, Detail), attributes).as_view()


DEMANDING = {
    "login_required": login_required(function),
    "login_required, async": login_required(afunction),
    "login_required below": never_cache(login_required(function)),
    "login_required on as_view": login_required(Detail.as_view()),
    "staff_member_required": staff_member_required(function),
    "permission_required": permission_required("x.y")(function),
    "permission_required, 403": permission_required("x.y", raise_exception=True)(function),
    "user_passes_test": user_passes_test(lambda user: user.is_staff)(function),
    "a decorator of the project": wrapped(function),
    "a decorator of the project on as_view": wrapped(Detail.as_view()),
    "a decorator without wraps": unwrapped(function),
    "a decorator with a class's attributes": disguised(Detail.as_view()),
    "a partial": functools.partial(unwrapped(function)),
    "a callable": Callable(),
    "decorator_from_middleware": decorator_from_middleware(Middleware)(function),
    "LoginRequiredMixin": of(LoginRequiredMixin),
    "PermissionRequiredMixin": of(PermissionRequiredMixin, permission_required="shop.view_product"),
    "UserPassesTestMixin": ByTest.as_view(),
    "method_decorator": Decorated.as_view(),
    "method_decorator of get": DecoratedMethod.as_view(),
    "method_decorator of a get of its own": LoginGet.as_view(),
    "get of a mixin": BehindStaffGet.as_view(),
    "dispatch": OwnDispatch.as_view(),
    "setup": OwnSetup.as_view(),
    "get": OwnGet.as_view(),
    "get_queryset": OwnQueryset.as_view(),
    "get_object": OwnObject.as_view(),
    "__init__": OwnInit.as_view(),
    "as_view": InAsView.as_view(),
    "as_view without wraps": InAsViewWithoutWraps.as_view(),
    "queryset is a property": QuerysetProperty.as_view(),
    "model is a property": ModelProperty.as_view(),
    "admin_view": admin.site.admin_view(function),
    "braces": Braces.as_view(),
    "guardian, login": of(GuardianLoginRequired),
    "guardian, permission": of(GuardianPermissionRequired, permission_required="shop.view_product"),
    "guardian, decorator": permission_required_or_403("shop.view_product", (Product, "pk", "pk"))(function),
    "guardian, decorator of all": permission_required_or_403("shop.view_product")(function),
    "rest framework, initial": Initial.as_view(),
    "rest framework, check_permissions": CheckPermissions.as_view(),
    "rest framework, permission_classes": Permitted.as_view(),
    "rest framework, function": api_function,
}
#: Checks of an object's own permissions tell, without bloomguard too, whether it is there.
TELLING = {"guardian, permission", "guardian, decorator"}


@pytest.fixture
def shop(build, settings):
    """``shop(view)`` puts it at ``/v/<pk>/``, named by a guard of products; there is 7."""
    settings.MIDDLEWARE = MIDDLEWARE
    Product.objects.create(pk=7)
    build("product")

    def use(view, **handlers):
        settings.ROOT_URLCONF = urlconf(
            path("v/<int:pk>/", view, name="product"), path("admin/", admin.site.urls), **handlers
        )
        return [route for route in table_for().guarded if route.guard.name == "product"]

    return use


def visit(url, method="get", client=Client):
    browser = client(raise_request_exception=False)
    response = (async_to_sync if client is AsyncClient else lambda function: function)(getattr(browser, method))(url)
    headers = {name: value.replace(url, "URL") for name, value in response.items()}
    return response.status_code, response.content.replace(url.encode(), b"URL"), headers


def blocked(look):
    """What ``look()`` gives, and the names of the guards that answered at the route or the lookup."""
    found = []

    def note(*, guard, **kwargs):
        found.append(guard.name)

    request_blocked.connect(note)
    try:
        return look(), found
    finally:
        request_blocked.disconnect(note)


clients = pytest.mark.parametrize("client", [Client, AsyncClient], ids=["wsgi", "asgi"])


@clients
@pytest.mark.parametrize("name", DEMANDING)
def test_a_stranger_cannot_tell_rows_that_are_there_from_others(shop, settings, monkeypatch, name, client):
    """What demands something of the user demands it for absent rows too, although a guard names the route."""
    monkeypatch.setattr("django.utils.cache.http_date", lambda *args: "a date")  # both visits may not be in one second
    [route] = shop(DEMANDING[name])
    absent, there = (visit(f"/v/{pk}/", client=client) for pk in (99, 7))
    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    bare = [visit(f"/v/{pk}/", client=client)[:2] for pk in (99, 7)]

    assert route.closed
    assert [absent[:2], there[:2]] == bare
    if name not in TELLING:
        assert absent == there
        assert absent[0] in (302, 403)


@pytest.mark.parametrize("name", [name for name in DEMANDING if not name.startswith("a partial")])
def test_auto_takes_none_of_them(shop, name):
    """What a guard finds by itself is open, or answered at its lookup."""
    shop(DEMANDING[name])
    with registered(Product, name="auto", routes="auto") as guard:
        assert [route for route in guarded_routes(guard) if not route.closed] == []


def test_the_admins_change_view_redirects_strangers_and_staff_as_ever(shop, settings, client):
    """Named by mistake, it is answered at its own query, and a check says so."""
    site = admin.AdminSite()
    site.register(Product)
    settings.ROOT_URLCONF = urlconf(path("admin/", site.urls))
    with registered(Product, name="odd", routes={"admin:shop_product_change": "object_id"}):
        messages = [message.id for message in checks.run_checks(tags=["bloomguard"]) if message.obj is Product]
        absent, there = (visit(f"/admin/shop/product/{pk}/change/") for pk in (99, 7))

    assert absent[0] == there[0] == 302
    assert "bloomguard.I015" in messages


def test_the_admin_said_to_be_public_is_warned_of(shop, settings):
    """It is open to all then, which can hardly be meant."""
    site = admin.AdminSite()
    site.register(Product)
    settings.ROOT_URLCONF = urlconf(path("admin/", site.urls))
    with registered(Product, name="odd", routes={"admin:shop_product_change": "object_id"}, public=True):
        messages = [message.id for message in checks.run_checks(tags=["bloomguard"]) if message.obj is Product]

    assert "bloomguard.W017" in messages


# -- what is known to be harmless

HARMLESS = {
    "cache_page": cache_page(60),
    "cache_control": cache_control(private=True),
    "never_cache": never_cache,
    "vary_on_headers": vary_on_headers("Accept"),
    "vary_on_cookie": vary_on_cookie,
    "require_GET": require_GET,
    "require_safe": require_safe,
    "require_http_methods": require_http_methods(["GET", "POST"]),
    "csrf_exempt": csrf_exempt,
    "csrf_protect": csrf_protect,
    "xframe_options_deny": xframe_options_deny,
    "xframe_options_sameorigin": xframe_options_sameorigin,
    "xframe_options_exempt": xframe_options_exempt,
    "no_append_slash": no_append_slash,
    "sensitive_post_parameters": sensitive_post_parameters("password"),
    "conditional_page": conditional_page,
    "gzip_page": gzip_page,
}
#: Django has no async kind of these.
SYNC_ONLY = {"cache_page", "csrf_protect", "conditional_page", "gzip_page"}
CASES = [(name, view) for name in HARMLESS for view in (function, afunction, Detail.as_view())
         if view is not afunction or name not in SYNC_ONLY]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "view"), CASES, ids=[f"{name}-{getattr(view, 'view_class', view).__name__}" for name, view in CASES]
)
def test_harmless_decorators_leave_a_view_open(shop, name, view):
    """They let a GET for an absent row go to its view, so the guard may answer for that."""
    decorated = HARMLESS[name](view)
    [route] = shop(decorated)
    assert route.closed == ""

    for client in (Client, AsyncClient):
        (status, _, _), guards = blocked(lambda client=client: visit("/v/99/", client=client))
        assert (status, guards) == (404, ["product"])
        assert visit("/v/7/", client=client)[0] == 200


@pytest.mark.parametrize("view", [function, afunction, Detail.as_view()], ids=["sync", "async", "class"])
def test_all_of_them_at_once_leave_it_open(shop, view):
    """In any depth."""
    decorate = [HARMLESS[name] for name in sorted(HARMLESS) if view is not afunction or name not in SYNC_ONLY]
    [route] = shop(functools.reduce(lambda inner, decorator: decorator(inner), decorate, view))

    assert route.closed == ""


@pytest.mark.parametrize("decorator", [ensure_csrf_cookie, condition(etag_func=lambda request, pk: "x"),
                                       etag(lambda request, pk: "x")], ids=["cookie", "condition", "etag"])  # fmt: skip
def test_decorators_that_answer_or_set_a_cookie_are_closed(shop, decorator):
    """Their answer, or what they add to one, is their own."""
    [route] = shop(decorator(function))

    assert route.closed.startswith("an unknown decorator runs first")


def test_a_csrf_token_in_the_session_closes(shop, settings):
    """``csrf_protect`` reads the session then: the 404 has ``Vary: Cookie``."""
    settings.CSRF_USE_SESSIONS = True
    [route] = shop(csrf_protect(function))

    assert route.closed.startswith("an unknown decorator runs first")
    assert visit("/v/99/")[0] == 404


def test_csrf_protect_without_the_middleware_closes(shop, settings):
    """It gives a form of the 404 page the token that fits the visitor's cookie."""
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "csrf" not in path]
    [route] = shop(csrf_protect(function))

    assert route.closed.startswith("an unknown decorator runs first")


@pytest.mark.parametrize("decorator", [requires_csrf_token, sensitive_variables("pk")], ids=["csrf", "variables"])
def test_what_is_not_known_is_guarded_at_its_lookup(shop, decorator, django_assert_num_queries):
    """Closed is no less guarded: no query for an absent row."""
    shop(decorator(function))
    with django_assert_num_queries(0):
        assert visit("/v/99/")[0] == 404


class PlainGet(View):
    template = "a product"

    def get(self, request, pk):
        return self.show(get_object_or_404(Product, pk=pk))

    def show(self, product):
        return HttpResponse(self.template)


class AsyncGet(View):
    async def get(self, request, pk):
        return await afunction(request, pk)


@clients
@pytest.mark.parametrize("view", [PlainGet, AsyncGet])
def test_a_plain_get_of_a_class_is_open_as_a_function_is(shop, view, client):
    """Nothing is around it, so what it does for an absent row is what the project says by naming it."""
    [route] = shop(view.as_view())
    (status, _, _), guards = blocked(lambda: visit("/v/99/", client=client))

    assert (route.closed, status, guards) == ("", 404, ["product"])
    assert visit("/v/7/", client=client)[0] == 200


class InheritedGet(PlainGet):
    pass


class UnwrappedGet(View):
    get = unwrapped(function)


@pytest.mark.parametrize(
    ("view", "where"), [(InheritedGet, "PlainGet"), (UnwrappedGet, "UnwrappedGet"), (StaffGet, "StaffGet")]
)
def test_a_get_that_is_inherited_or_calls_another_is_closed(shop, view, where):
    """A mixin's may check the user, and so may what stands before the other."""
    [route] = shop(view.as_view())

    assert route.closed == f"{where}.get runs first"


# -- methods


class PostOnly(View):
    def post(self, request, pk):
        return HttpResponse("posted")


class Update(Shown, UpdateView):
    model = Product
    fields = ("name",)
    http_method_names = ("post",)


@clients
@pytest.mark.parametrize(
    "view",
    [require_POST(function), require_http_methods(["PUT"])(function), PostOnly.as_view(), Update.as_view(),
     Detail.as_view(http_method_names=["options"])],
    ids=["require_POST", "PUT", "class", "http_method_names", "as_view"],
)  # fmt: skip
def test_a_method_that_the_view_refuses_is_refused(shop, view, client):
    """405 for rows that are there and for others."""
    shop(view)

    assert [visit(f"/v/{pk}/", client=client)[0] for pk in (7, 99)] == [405, 405]


@clients
def test_require_GET_refuses_head(shop, client):
    """``require_GET`` takes no HEAD; ``require_safe`` does."""
    shop(require_GET(function))
    assert [visit(f"/v/{pk}/", "head", client=client)[0] for pk in (7, 99)] == [405, 405]
    shop(require_safe(function))
    assert [visit(f"/v/{pk}/", "head", client=client)[0] for pk in (7, 99)] == [200, 404]


@pytest.mark.parametrize("name", ["csrf_protect", "cache_page", "conditional_page", "gzip_page"])
def test_what_looks_at_other_methods_has_the_first_word_of_them(build, settings, name):
    """``csrf_protect`` refuses a POST without a token, of rows that are there and of others."""
    settings.MIDDLEWARE = [path for path in MIDDLEWARE if name == "csrf_protect" or "csrf" not in path]
    settings.ROOT_URLCONF = urlconf(path("v/<int:pk>/", HARMLESS[name](function), name="posted"))
    Product.objects.create(pk=7)
    with registered(Product, name="posts", routes=["posted"], methods=("GET", "HEAD", "POST")) as guard:
        build("posts")
        [route] = guarded_routes(guard)
        statuses = [Client(enforce_csrf_checks=True).post(f"/v/{pk}/").status_code for pk in (7, 99)]

    assert (route.closed, route.methods) == ("", {"GET", "HEAD"})
    assert statuses == ([403, 403] if name == "csrf_protect" else [200, 404])


class StaffUpdate(Update):
    http_method_names = ("get", "post")

    @method_decorator(login_required)
    def post(self, *args, **kwargs):
        return super().post(*args, **kwargs)


def test_a_class_has_the_first_word_of_other_methods(build, settings):
    """Its ``post`` may demand a login, though its ``get`` does not."""
    settings.MIDDLEWARE = MIDDLEWARE
    settings.ROOT_URLCONF = urlconf(path("v/<int:pk>/", StaffUpdate.as_view(), name="update"))
    Product.objects.create(pk=7)
    with registered(Product, name="posts", routes=["update"], methods=("GET", "HEAD", "POST")):
        build("posts")
        statuses = [Client().post(f"/v/{pk}/").status_code for pk in (7, 99)]
        (status, _, _), guards = blocked(lambda: visit("/v/99/"))

    assert statuses == [302, 302]
    assert (status, guards) == (404, ["posts"])


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options", "trace"])
def test_other_methods_pass(shop, method):
    """A guard answers GET and HEAD; the view has its say of the rest."""
    shop(Detail.as_view())

    assert blocked(lambda: visit("/v/99/", method)[0] == visit("/v/7/", method)[0]) == (True, [])


# -- Guard.public


@pytest.mark.parametrize("name", ["login_required", "LoginRequiredMixin", "a decorator of the project"])
def test_public_says_that_a_route_may_be_answered(shop, settings, build, name):
    """``public = True`` is the project's word."""
    shop(DEMANDING[name])
    with registered(Product, name="open", routes=["product"], public=True) as guard:
        build("open")
        [route] = guarded_routes(guard)
        assert route.closed == ""
        assert visit("/v/99/")[0] == 404


def test_public_is_not_for_rest_framework(shop, build):
    """Its 404 has the format that the client asks for, which only its view knows."""
    shop(Permitted.as_view())
    with registered(Product, name="open", routes=["product"], public=True) as guard:
        build("open")
        [route] = guarded_routes(guard)
        assert route.closed == "REST framework renders its own 404"
    with registered(Product, name="first", routes=["product"]):
        found = checks.run_checks(tags=["bloomguard"])
    [note] = [each for each in found if each.id == "bloomguard.I015" and "'first'" in each.msg]
    assert note.hint == "It answers at the view's own query; remove the route from routes."


def test_a_closed_route_of_a_guard_that_answers_no_query_is_noted_as_unguarded(shop):
    """Without its lookups nothing is left that the guard would answer."""
    shop(Permitted.as_view())
    with registered(Product, name="idle", routes=["product"], lookups=False):
        found = checks.run_checks(tags=["bloomguard"])
    [note] = [each for each in found if each.id == "bloomguard.I015" and "'idle'" in each.msg]
    assert note.hint == "It answers no query either; remove the route from routes."


def test_public_false_answers_no_route(shop, settings, build, django_assert_num_queries):
    """The view runs, and its own query is answered."""
    called = []

    def view(request, pk):
        called.append(pk)
        return function(request, pk)

    settings.ROOT_URLCONF = urlconf(path("v/<int:pk>/", view, name="shut"))
    with registered(Product, name="shut", routes=["shut"], public=False) as guard:
        build("shut")
        [route] = guarded_routes(guard)
        with django_assert_num_queries(0):
            assert visit("/v/99/")[0] == 404

    assert route.closed == "public = False"
    assert called == [99]


# -- LoginRequiredMiddleware


@clients
def test_where_every_view_demands_a_login_strangers_are_sent_there(shop, settings, client):
    """No view is open but those that are ``login_not_required``."""
    settings.MIDDLEWARE = [*MIDDLEWARE[:-1], LOGIN_REQUIRED, GUARD]
    [route] = shop(function)
    assert route.closed == "LoginRequiredMiddleware demands a login"
    assert [visit(f"/v/{pk}/", client=client)[0] for pk in (7, 99)] == [302, 302]

    [route] = shop(login_not_required(lambda request, pk: function(request, pk)))
    assert route.closed == ""
    assert [visit(f"/v/{pk}/", client=client)[0] for pk in (7, 99)] == [200, 404]


# -- views that cannot be read


@pytest.mark.parametrize("attribute", ["model", "queryset"])
@pytest.mark.parametrize("kind", [property, cached_property])
def test_a_view_whose_class_cannot_be_read_is_left_alone(shop, settings, build, capsys, attribute, kind):
    """A property that needs the request: checks, ``guard_routes`` and rebuilds run, and other guards are as before."""
    from django.core.management import call_command

    def needs_the_request(self):
        return {"product": Product}[self.kwargs["kind"]]

    view = type("Odd", (Detail,), {"model": None, attribute: kind(needs_the_request)})
    if kind is cached_property:
        vars(view)[attribute].__set_name__(view, attribute)
    settings.ROOT_URLCONF = urlconf(
        path("odd/<str:kind>/<int:pk>/", view.as_view(), name="odd"),
        path("v/<int:pk>/", Detail.as_view(), name="product"),
    )
    with registered(Product, name="finder", routes="auto") as guard:
        build("finder")
        checks.run_checks(tags=["bloomguard"])
        call_command("guard_routes")
        assert [route.pattern.view_name for route in guarded_routes(guard)] == ["product"]
        (status, _, _), guards = blocked(lambda: visit("/v/99/"))

    assert status == 404
    assert len(guards) == 1
    assert "/odd/<str:kind>/<int:pk>/" in capsys.readouterr().out


@pytest.mark.parametrize("view", [CreateView, RedirectView], ids=lambda view: view.__name__)
def test_generic_views_that_look_nothing_up_are_not_found(shop, view):
    """``auto`` takes views of one object."""
    shop(view.as_view(**({"model": Product, "fields": ["name"]} if view is CreateView else {"url": "/"})))
    with registered(Product, name="auto", routes="auto") as guard:
        assert guarded_routes(guard) == []


@dataclass
class Comparing:
    """A callable object that is compared by its value, so it has no hash."""

    label: str = ""

    def __call__(self, request, pk):
        return function(request, pk)


def test_a_view_without_a_hash_is_like_any_other(shop, monkeypatch, caplog):
    """It is guarded at its lookup, or before it runs if the guard is public; it disturbs no other route."""
    [route] = shop(Comparing())
    assert "instance of Comparing" in route.closed
    assert blocked(lambda: visit("/v/99/"))[1] == ["product"]

    monkeypatch.setattr(registry["product"], "public", True)
    registry.changed()
    assert [route.closed for route in table_for().guarded] == [""]
    assert blocked(lambda: visit("/v/99/"))[1] == ["product"]
    assert [record for record in caplog.records if record.name == "bloomguard"] == []


def fail():
    raise LookupError("too early")


LAZY = SimpleLazyObject(fail)


def of_lazy():
    """A view that closes over a lazy object; its code names another one."""
    held = SimpleLazyObject(fail)

    def view(request, pk):
        return held and LAZY

    return view


class LazyQueryset(DetailView):
    queryset = SimpleLazyObject(fail)


@pytest.mark.parametrize("view", [of_lazy(), LazyQueryset.as_view()], ids=["function", "class"])
def test_a_lazy_object_of_a_view_disturbs_no_route(shop, settings, build, capsys, view):
    """It may need the database or the request, so nobody evaluates it before the view does."""
    from django.core.management import call_command

    settings.ROOT_URLCONF = urlconf(
        path("lazy/<int:pk>/", view, name="lazy"), path("v/<int:pk>/", function, name="product")
    )
    articles = registered(Article, name="articles", routes=["lazy"])
    with registered(Product, name="both", routes=["lazy", "product"]), articles:
        build("both")
        checks.run_checks(tags=["bloomguard"])
        for command in ("guard_routes", "suggest_guards"):
            call_command(command)
        (status, _, _), guards = blocked(lambda: visit("/v/99/"))

    assert (status, len(guards)) == (404, 1)
    assert "/lazy/<int:pk>/" in capsys.readouterr().out


def test_a_view_that_wraps_itself_is_a_plain_one(shop):
    """By ``wraps(view)(view)``, as of a decorator that returns the view that it has marked."""

    def view(request, pk):
        return function(request, pk)

    [route] = shop(functools.wraps(view)(view))

    assert route.closed == ""
    assert blocked(lambda: visit("/v/99/"))[1] == ["product"]


def of_deleted_variable():
    cause = KeyError("no cache")

    def view(request, pk):
        if pk == 0:
            raise Http404 from cause  # noqa: F821
        return function(request, pk)

    del cause  # as Python does at the end of `except KeyError as cause`
    return view


def test_a_view_that_closes_over_a_variable_without_a_value_is_closed(shop):
    """It may get a value later, and nobody knows which."""
    [route] = shop(of_deleted_variable())

    assert "closes over" in route.closed
    assert blocked(lambda: visit("/v/99/"))[1] == ["product"]


# -- the words of a 404


def words(request, exception):
    return HttpResponse(f"not found: {exception}", status=404)


@pytest.mark.parametrize(
    "view",
    [function, afunction, Detail.as_view(), DeleteView.as_view(model=Product),
     DetailView.as_view(queryset=Product.objects.filter(name="tea"))],
    ids=["function", "async", "DetailView", "DeleteView", "queryset"],
)  # fmt: skip
@pytest.mark.parametrize("language", ["as it is", "translated"])
def test_the_message_is_the_views_own(shop, view, language, monkeypatch):
    """``handler404`` is told the same whether the guard or the view answers, whatever Django translates."""
    shop(view, handler404=words)
    if language == "translated":
        monkeypatch.setattr(translation._trans, "gettext", lambda text: f"<{text}>")
    (answered, guards) = blocked(lambda: visit("/v/99/"))
    bare = pytest.MonkeyPatch()
    with bare.context() as patch:
        patch.setattr("bloomguard.guards.Guard.methods", ())
        from bloomguard.guards import registry

        registry.changed()
        unguarded, none = blocked(lambda: visit("/v/99/"))
    registry.changed()

    assert guards == ["product"]
    assert none == []
    assert answered[:2] == unguarded[:2]


@pytest.mark.parametrize("public", [None, True])
def test_a_view_that_looks_up_a_date_too_is_closed(build, settings, db, public):
    """The date decides first, and the words of its 404 are others."""
    view = type("Dated", (DateDetailView,), {"model": Diary, "date_field": "day", "month_format": "%m"})
    settings.MIDDLEWARE = ["bloomguard.middleware.BloomGuardMiddleware"]
    settings.ROOT_URLCONF = urlconf(
        path("<int:year>/<int:month>/<int:day>/<int:pk>/", view.as_view(), name="dated"), handler404=words
    )
    with registered(Diary, name="dated", routes=["dated"], public=public) as guard:
        build("dated")
        [route] = guarded_routes(guard)
        said = [visit(f"/{day}/99/")[1] for day in ("2024/2/30", "2999/1/1", "2024/2/29")]

    assert "date" in route.closed
    assert [each[:20] for each in said] == [b"not found: Invalid d", b"not found: Future di", b"not found: No diary "]


def test_an_open_view_of_a_guard_with_alive(build, settings):
    """``auto`` takes a queryset that asks for what ``alive`` asks for, and no other."""
    from django.db.models import Q

    settings.ROOT_URLCONF = urlconf(
        path("a/<slug:slug>/", DetailView.as_view(queryset=Article.objects.filter(deleted=False)), name="alive"),
        path("b/<slug:slug>/", DetailView.as_view(model=Article), name="all"),
    )
    with registered(Article, name="page", lookup="slug", alive=Q(deleted=False), routes="auto") as guard:
        assert [route.pattern.view_name for route in guarded_routes(guard)] == ["alive"]
        assert Rebuild(guard)


def test_a_404_of_a_view_is_its_own(shop):
    """A view that raises Http404 for rows that are there is not disturbed."""

    def view(request, pk):
        raise Http404("hidden")

    shop(view, handler404=words)

    assert visit("/v/7/")[:2] == (404, b"not found: hidden")


# -- what a function or a class is given


def demand(request):
    if not request.headers.get("X-Member"):
        raise PermissionDenied


class Members:
    """Something that may do anything when it is asked."""

    def __contains__(self, request):
        demand(request)
        return True


def of_closure(check=demand):
    def view(request, pk):
        check(request)
        return function(request, pk)

    return view


def of_closure_in(members):
    def view(request, pk):
        assert request in members["all"][0]
        return function(request, pk)

    return view


def of_default(request, pk, check=demand):
    check(request)
    return function(request, pk)


def of_keyword(request, pk, *, check=demand):
    check(request)
    return function(request, pk)


def demanding_object(view):
    demand(view.request)
    return get_object_or_404(Product, pk=view.kwargs["pk"])


def refuse(queryset=None):
    raise PermissionDenied


class GivenObject(View):
    """A class that takes its object from whoever makes the view."""

    get_object = None

    def get(self, request, pk):
        return HttpResponse(f"{self.get_object(self).pk}")


HOLDING = {
    "a closure": of_closure(),
    "a container in a closure": of_closure_in({"all": (Members(),)}),
    "a default": of_default,
    "a keyword's default": of_keyword,
    "as_view(get_object=...)": DetailView.as_view(model=Product, get_object=refuse),
    "as_view(get_object=...) of an own class": GivenObject.as_view(get_object=demanding_object),
}


@pytest.mark.parametrize("name", HOLDING)
def test_what_a_view_holds_may_demand_something(shop, name):
    """A function, or anything that is no plain value, in a closure, a default or ``as_view``: not known, so closed."""
    [route] = shop(HOLDING[name])

    absent, there = (visit(f"/v/{pk}/") for pk in (99, 7))

    assert route.closed
    assert absent == there
    assert absent[0] == 403


def test_plain_values_that_a_view_holds_leave_it_open(shop):
    """Nothing can be done with them but compare, format or look up."""
    held = {"a": [None, "text", 7, (1, b"2"), 1.5, frozenset({True}), Product, re.compile("x")]}

    def view(request, pk, given=held):
        assert held is given
        return function(request, pk)

    [route] = shop(view)

    assert route.closed == ""
    assert blocked(lambda: visit("/v/99/"))[1] == ["product"]


class Noting:
    """Middleware that passes all requests."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)


class Answering(Noting):
    """Middleware that has an answer of its own for an Http404 of a view."""

    def process_exception(self, request, exception):
        return HttpResponse("moved to our new site", status=410)


@clients
def test_middleware_that_answers_exceptions_answers_those_of_absent_rows(shop, settings, client):
    """A ``process_exception`` hears of what views raise, and of nothing that is answered before."""
    [route] = shop(function)
    settings.MIDDLEWARE = [f"{__name__}.Answering", *MIDDLEWARE]
    [route] = table_for().guarded[:1]

    assert "process_exception" in route.closed
    assert visit("/v/99/", client=client)[:2] == (410, b"moved to our new site")


class Answered(Noting):
    """Middleware of which only the instance has such a method."""

    def __init__(self, get_response):
        super().__init__(get_response)
        self.process_exception = lambda request, exception: HttpResponse("moved to our new site", status=410)


def answering(get_response):
    """A factory function that makes such middleware."""
    return Answering(get_response)


def answering_by_a_function(get_response):
    """A factory function, what it makes is one too."""

    def passes(request):
        return get_response(request)

    passes.process_exception = lambda request, exception: HttpResponse("moved to our new site", status=410)
    return passes


@clients
@pytest.mark.parametrize("public", [None, True])
@pytest.mark.parametrize("middleware", ["Answered", "answering", "answering_by_a_function"])
def test_a_process_exception_that_no_class_has_counts_as_well(shop, settings, monkeypatch, client, middleware, public):
    """What a factory makes is known when Django has loaded it: then no guard answers before the view, but in public."""
    monkeypatch.setattr(registry["product"], "public", public)
    shop(function)
    settings.MIDDLEWARE = [f"{__name__}.{middleware}", *MIDDLEWARE]

    assert visit("/v/7/", client=client)[0] == 200
    assert visit("/v/99/", client=client)[0] == (404 if public else 410)


class OwnCsrf(CsrfViewMiddleware):
    """A project's own kind, which may do anything."""


def test_only_middleware_that_is_known_by_its_name_passes():
    """A subclass may do more, and without a handler's list nothing is known: neither opens the door or a route."""

    def lists(middleware):
        return SimpleNamespace(_view_middleware=[middleware(lambda request: None).process_view])

    assert are_passing(lists(CsrfViewMiddleware), "_view_middleware")
    assert not are_passing(lists(OwnCsrf), "_view_middleware")
    assert not any(are_passing(each, "_view_middleware") for each in (None, object(), BaseHandler()))


class OfProxies(DetailView):
    model = Bargain


@pytest.mark.parametrize(
    ("view", "said"),
    [(OfProxies.as_view(), b"not found: No bargain found matching the query"),
     (function, b"not found: No Product matches the given query.")],
    ids=["a view of the proxy", "a function"],
)  # fmt: skip
def test_a_404_names_the_model_of_the_view(shop, view, said):
    """A proxy has another name than the guard's model; what the view would have said is said."""
    shop(view, handler404=words)
    answered, guards = blocked(lambda: visit("/v/99/"))

    assert answered[:2] == (404, said)
    assert guards == ["product"]


@clients
@pytest.mark.parametrize("view", [function, afunction], ids=["function", "async"])
def test_applies_must_not_be_async(shop, monkeypatch, caplog, client, view):
    """A coroutine would be true, whatever it says: the request passes, which is logged once."""
    asked = []

    async def applies(request):
        asked.append(request)
        return True

    shop(view)
    monkeypatch.setattr(registry["product"], "applies", applies)
    answers, guards = blocked(lambda: [visit(f"/v/{pk}/", client=client)[0] for pk in (99, 98)])

    assert (answers, guards) == ([404, 404], [])
    assert asked == []  # it is never awaited
    assert len([record for record in caplog.records if "applies" in record.getMessage()]) == 1
