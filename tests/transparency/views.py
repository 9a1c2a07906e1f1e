"""Views of every kind that looks up one row: well-behaved ones, picky ones and odd ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial, wraps
from typing import Any
from urllib.parse import unquote

from braces import views as braces
from django.contrib.admin.utils import unquote as admin_unquote
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth import mixins as auth_mixins
from django.contrib.auth.decorators import login_required, permission_required, user_passes_test
from django.contrib.syndication.views import Feed
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import connection, transaction
from django.db.models import Q
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotFound,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import aget_object_or_404, get_list_or_404, get_object_or_404, redirect, render
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.views.decorators import cache, clickjacking, csrf, gzip, http, vary
from django.views.decorators.debug import sensitive_variables
from django.views.generic import DateDetailView, DeleteView, DetailView, RedirectView, TemplateView, UpdateView, View
from guardian.decorators import permission_required as guardian_permission_required
from guardian.decorators import permission_required_or_403
from guardian.mixins import PermissionRequiredMixin as GuardianPermissionRequiredMixin
from rest_framework import exceptions, generics, permissions, renderers, serializers, viewsets
from rest_framework.decorators import api_view
from rest_framework.decorators import permission_classes as permissions_of
from rest_framework.response import Response
from rest_framework.throttling import UserRateThrottle

from .models import Entry, Note, OldSlug, Place

Callback = Callable[..., Any]


def shown(request: HttpRequest, row: Any) -> HttpResponse:
    return render(request, "entry.html", {"object": row})


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The site's handler404."""
    response = render(request, "not_found.html", status=404)
    response["X-Not-Found"] = request.path
    return response


def fails_for_strangers(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A handler404 that takes it for granted that somebody is logged in."""
    return HttpResponse(f"{request.user.get_username()[0]} finds nothing", status=404)


def logs_in(request: HttpRequest) -> HttpResponse:
    return HttpResponse("log in")


# -- plain functions


def plain(request: HttpRequest, pk: int) -> HttpResponse:
    return shown(request, get_object_or_404(Entry.public, pk=pk))


def plain_any(request: HttpRequest, pk: int) -> HttpResponse:
    return shown(request, get_object_or_404(Entry, pk=pk))


def plain_slug(request: HttpRequest, slug: str) -> HttpResponse:
    return shown(request, get_object_or_404(Entry.public, slug=slug))


def first(request: HttpRequest, pk: int) -> HttpResponse:
    row = Entry.public.filter(pk=pk).first()
    if row is None:
        raise Http404
    return shown(request, row)


def exists(request: HttpRequest, pk: int) -> HttpResponse:
    if not Entry.public.filter(pk=pk).exists():
        raise Http404("no such entry")
    return HttpResponse("it is there")


def values(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        title = Entry.objects.filter(Q(alive=True), pk=pk).values_list("title", flat=True).get()
    except Entry.DoesNotExist as error:
        raise Http404 from error
    return HttpResponse(title)


def listed(request: HttpRequest, pk: int) -> HttpResponse:
    return shown(request, get_list_or_404(Entry.public.order_by("title"), pk=pk)[0])


def note(request: HttpRequest, name: str) -> HttpResponse:
    return shown(request, get_object_or_404(Note, pk=name))


def place(request: HttpRequest, code: str, slug: str) -> HttpResponse:
    return shown(request, get_object_or_404(Place, country=code, slug=slug))


def own_words(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        return shown(request, Entry.public.get(pk=pk))
    except Entry.DoesNotExist:
        return HttpResponseNotFound("we have no such entry")


def gone(request: HttpRequest, pk: int) -> HttpResponse:
    row = Entry.public.filter(pk=pk).first()
    return shown(request, row) if row else HttpResponse("gone", status=410)


def count(request: HttpRequest, pk: int) -> HttpResponse:
    return JsonResponse({"rows": Entry.public.filter(pk=pk).count(), "all": len(Entry.objects.filter(pk__in=[pk, 1]))})


def raw(request: HttpRequest, pk: int) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT title FROM transparency_entry WHERE id = %s", [pk])
        row = cursor.fetchone()
    rows = list(Entry.objects.raw("SELECT * FROM transparency_entry WHERE id = %s", [pk]))
    return JsonResponse({"row": row, "rows": len(rows)})


def locked(request: HttpRequest, pk: int) -> HttpResponse:
    with transaction.atomic():
        return shown(request, get_object_or_404(Entry.public.select_for_update(), pk=pk))


def lazily_rendered(request: HttpRequest, pk: int) -> HttpResponse:
    return TemplateResponse(request, "entry.html", {"entries": Entry.public.filter(pk=pk)})


def streamed(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    def lines() -> Iterator[str]:
        yield "entries:"
        for row in Entry.public.filter(pk=pk):
            yield str(row)

    return StreamingHttpResponse(lines())


def unnamed(request: HttpRequest, number: str) -> HttpResponse:
    return shown(request, get_object_or_404(Entry.public, pk=number))


def by_query(request: HttpRequest) -> HttpResponse:
    return shown(request, get_object_or_404(Entry.public, pk=request.GET.get("pk", 0)))


def by_session(request: HttpRequest) -> HttpResponse:
    return shown(request, get_object_or_404(Entry.public, pk=request.session.get("entry", 0)))


def reads_the_user(request: HttpRequest, pk: int) -> HttpResponse:
    if not request.user.is_authenticated:
        raise PermissionDenied
    return plain(request, pk)


def writes_the_session(request: HttpRequest, pk: int) -> HttpResponse:
    request.session["seen"] = pk
    return plain(request, pk)


def redirects_old_slugs(request: HttpRequest, slug: str) -> HttpResponse:
    row = Entry.public.filter(slug=slug).first()
    if row is None:
        return redirect("plain-slug", get_object_or_404(OldSlug, slug=slug).now)
    return shown(request, row)


def folds_case(request: HttpRequest, slug: str) -> HttpResponse:
    return plain_slug(request, slug.lower())


def unquotes(request: HttpRequest, name: str) -> HttpResponse:
    return note(request, admin_unquote(unquote(name)))


def falls_back(request: HttpRequest, slug: str) -> HttpResponse:
    return shown(request, Entry.public.filter(slug=slug).first() or Entry.objects.get(pk=1))


def makes_its_row(request: HttpRequest, pk: int) -> HttpResponse:
    return shown(request, Entry.objects.get_or_create(pk=pk, defaults={"slug": f"made-{pk}"})[0])


def makes_its_note(request: HttpRequest, name: str) -> HttpResponse:
    row, made = Note.objects.get_or_create(pk=name)
    again = Note.objects.filter(pk=name).exists()
    return HttpResponse(f"{row} {made} {again}")


@http.require_POST
def post_only(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Entry.public, pk=pk)
    row.title = "Posted"
    row.save()
    return shown(request, row)


class Called:
    """A callable that is no function."""

    def __call__(self, request: HttpRequest, pk: int) -> HttpResponse:
        return plain(request, pk)


called = Called()
partly = partial(lambda request, way, pk: plain(request, pk), way="partial")


class EntryFeed(Feed):  # type: ignore[type-arg]
    title = "Entries"
    link = "/feed/"

    def get_object(self, request: HttpRequest, pk: int) -> Entry:  # type: ignore[override]
        return Entry.public.get(pk=pk)

    def items(self, obj: Entry) -> list[Entry]:
        return [obj]

    def item_pubdate(self, item: Entry) -> Any:
        return item.changed


# -- coroutines


@transaction.non_atomic_requests
async def awaited(request: HttpRequest, pk: int) -> HttpResponse:
    row = await aget_object_or_404(Entry.public, pk=pk)
    return HttpResponse(str(row))


@transaction.non_atomic_requests
async def awaited_first(request: HttpRequest, slug: str) -> HttpResponse:
    row = await Entry.public.filter(slug=slug).afirst()
    if row is None:
        raise Http404
    return HttpResponse(str(row))


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class Awaited(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        try:
            return HttpResponse(str(await Entry.public.aget(pk=pk)))
        except ObjectDoesNotExist:
            return HttpResponse("nothing", status=404)


# -- decorators


def with_a_key(view: Callback) -> Callback:
    """A decorator as sites write it, that tells of the view it wraps."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if "k" not in request.GET and not request.user.is_staff:  # type: ignore[union-attr]
            return HttpResponse("no key", status=401)
        response: HttpResponse = view(request, *args, **kwargs)
        return response

    return wrapper


def with_a_key_untold(view: Callback) -> Callback:
    """The same, and it does not tell."""

    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_staff:  # type: ignore[union-attr]
            return HttpResponse("no key", status=401)
        response: HttpResponse = view(request, *args, **kwargs)
        return response

    return wrapper


def with_a_header(view: Callback) -> Callback:
    """A decorator that marks each answer, a 404 too."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = view(request, *args, **kwargs)
        except Http404:
            response = not_found(request, Http404())
        response["X-Marked"] = "yes"
        return response  # type: ignore[no-any-return]

    return wrapper


def changed(request: HttpRequest, pk: int) -> Any:
    return Entry.public.filter(pk=pk).values_list("changed", flat=True).first()


def tag(request: HttpRequest, pk: int) -> str:
    return f'"{pk}"'  # also of rows that are not there


DECORATORS: dict[str, Callback] = {
    # of Django's, that change nothing but what the view has answered
    "cache-page": cache.cache_page(60),
    "cache-control": cache.cache_control(max_age=60),
    "never-cache": cache.never_cache,
    "vary-cookie": vary.vary_on_cookie,
    "vary-headers": vary.vary_on_headers("Accept"),
    "csrf-exempt": csrf.csrf_exempt,
    "csrf-protect": csrf.csrf_protect,
    "csrf-required": csrf.requires_csrf_token,
    "csrf-cookie": csrf.ensure_csrf_cookie,
    "frame-exempt": clickjacking.xframe_options_exempt,
    "gzip-page": gzip.gzip_page,
    "sensitive": sensitive_variables("pk"),
    "require-get": http.require_GET,
    "require-safe": http.require_safe,
    "require-methods": http.require_http_methods(["GET", "HEAD", "POST"]),
    "conditional": http.conditional_page,
    "non-atomic": transaction.non_atomic_requests,
    # of Django's, that may answer themselves
    "condition": http.condition(etag_func=tag, last_modified_func=changed),
    "etag": http.etag(tag),
    "last-modified": http.last_modified(changed),
    "login": login_required,
    "permission": permission_required("transparency.view_entry"),
    "permission-or-403": permission_required("transparency.view_entry", raise_exception=True),
    "passes-test": user_passes_test(lambda user: user.is_staff),
    "staff": staff_member_required,
    # of others
    "guardian": guardian_permission_required("transparency.view_entry", (Entry, "pk", "pk")),
    "guardian-or-403": permission_required_or_403("transparency.change_entry", (Entry, "pk", "pk")),
    "key": with_a_key,
    "header": with_a_header,
    "login-under-cache": lambda view: cache.cache_page(60)(login_required(view)),
}
#: A guard may not name these: their view answers something else where the ID has no row, and nothing tells so.
DECORATORS_UNTOLD: dict[str, Callback] = {"key-untold": with_a_key_untold}


def decorated(decorator: Callback) -> Callback:
    """A view of its own, for some decorators mark the function that they get."""

    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return plain(request, pk)

    return decorator(view)  # type: ignore[no-any-return]


# -- class-based views


class Detail(DetailView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    template_name = "entry.html"


class DetailAny(DetailView):  # type: ignore[type-arg]
    model = Entry
    template_name = "entry.html"


class DetailOfPlace(DetailView):  # type: ignore[type-arg]
    model = Place
    template_name = "entry.html"
    query_pk_and_slug = True

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(country=self.kwargs["code"])


class DetailOfNote(DetailView):  # type: ignore[type-arg]
    model = Note
    template_name = "entry.html"
    slug_field = "name"
    slug_url_kwarg = "name"


class ByDate(DateDetailView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    date_field = "day"
    month_format = "%m"
    template_name = "entry.html"


class Update(UpdateView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    fields = ["title"]
    template_name = "entry.html"


class UpdateNote(UpdateView):  # type: ignore[type-arg]
    model = Note
    fields = ["title"]
    template_name = "entry.html"


class Delete(DeleteView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    template_name = "entry.html"
    success_url = "/deleted/"


class DeleteNote(DeleteView):  # type: ignore[type-arg]
    model = Note
    template_name = "entry.html"
    success_url = "/deleted/"


class ByItself(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return plain(request, pk)


class OnlyPost(DetailView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    http_method_names = ["post", "options"]

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return shown(request, self.get_object())


class InTheContext(TemplateView):
    template_name = "entry.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(object=get_object_or_404(Entry.public, pk=kwargs["pk"]), **kwargs)


class Redirects(RedirectView):
    def get_redirect_url(self, *args: Any, **kwargs: Any) -> str:
        return get_object_or_404(Entry.public, pk=kwargs["pk"]).get_absolute_url()


def denies(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not self.request.user.is_staff:
        raise PermissionDenied
    return None


class DeniesInDispatch(Detail):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not request.user.is_staff:  # type: ignore[union-attr]
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)


class DeniesInSetup(Detail):
    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        denies(self)


class DeniesInGet(Detail):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return denies(self) or super().get(request, *args, **kwargs)


class DeniesInQueryset(Detail):
    def get_queryset(self) -> Any:
        return denies(self) or super().get_queryset()


class DeniesInObject(Detail):
    def get_object(self, queryset: Any = None) -> Any:
        return denies(self) or super().get_object(queryset)


class DeniesAfterwards(Detail):
    def get_object(self, queryset: Any = None) -> Any:
        row = super().get_object(queryset)
        denies(self)
        return row


class DeniesByProperty(Detail):
    @property
    def queryset(self) -> Any:  # type: ignore[override]
        denies(self)
        return Entry.public.all()


class ModelByRequest(DetailView):  # type: ignore[type-arg]
    template_name = "entry.html"

    @cached_property
    def model(self) -> Any:  # type: ignore[override]
        return Entry if self.request.GET.get("of", "entry") == "entry" else Note


class OwnWords(Detail):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().get(request, *args, **kwargs)
        except Http404:
            return HttpResponseNotFound("we have no such entry")


class OwnDispatch(Detail):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            response = super().dispatch(request, *args, **kwargs)
        except Http404:
            response = redirect("/somewhere/")
        response["X-Own"] = "yes"
        return response


class MakesItsRow(DetailAny):
    def get_object(self, queryset: Any = None) -> Any:
        return Entry.objects.get_or_create(pk=self.kwargs["pk"], defaults={"slug": f"made-{self.kwargs['pk']}"})[0]


class FallsBack(DetailAny):
    def get_object(self, queryset: Any = None) -> Any:
        return Entry.public.filter(pk=self.kwargs["pk"]).first() or Entry.objects.get(pk=1)


class FoldsCase(Detail):
    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, slug=kwargs["slug"].lower())


class OldSlugs(Detail):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        old = OldSlug.objects.filter(slug=self.kwargs["slug"]).first()
        return redirect("plain-slug", old.now) if old else super().get(request, *args, **kwargs)


class RedirectsInContext(Detail):
    def render_to_response(self, context: Any, **kwargs: Any) -> Any:
        return redirect("/elsewhere/")


class ForStaffOrPublic(DetailAny):
    def get_queryset(self) -> Any:
        return Entry.objects.all() if self.request.user.is_staff else Entry.public.all()  # type: ignore[union-attr]


class SavesWhoAsks(Detail):
    def get_queryset(self) -> Any:
        self.request.session["asked"] = self.kwargs["pk"]
        return super().get_queryset()


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class AsyncDispatch(Detail):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:  # type: ignore[override]
        return HttpResponse(str(await aget_object_or_404(Entry.public, pk=pk)))


class LogsIn(auth_mixins.LoginRequiredMixin, Detail):
    pass


class PermissionNeeded(auth_mixins.PermissionRequiredMixin, Detail):
    permission_required = "transparency.view_entry"


class TestNeeded(auth_mixins.UserPassesTestMixin, Detail):
    def test_func(self) -> bool:
        return bool(self.request.user.is_staff)  # type: ignore[union-attr]


class RaisingLogin(auth_mixins.LoginRequiredMixin, Detail):
    raise_exception = True


class GuardianDetail(GuardianPermissionRequiredMixin, Detail):  # type: ignore[misc]
    permission_required = "transparency.view_entry"


class GuardianDenies(GuardianPermissionRequiredMixin, Detail):  # type: ignore[misc]
    permission_required = "transparency.change_entry"
    raise_exception = True


@method_decorator(login_required, name="dispatch")
class DecoratedDispatch(Detail):
    pass


class DecoratedGet(Detail):
    @method_decorator(with_a_key)
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)


@method_decorator(cache.never_cache, name="dispatch")
class NeverCached(Detail):
    pass


def of_braces(mixin: type, **attributes: Any) -> type[Detail]:
    return type(f"Braces{mixin.__name__}", (mixin, Detail), attributes)


BRACES: dict[str, type[Detail]] = {
    "login": of_braces(braces.LoginRequiredMixin),
    "login-403": of_braces(braces.LoginRequiredMixin, raise_exception=True, redirect_unauthenticated_users=True),
    "anonymous": of_braces(braces.AnonymousRequiredMixin, authenticated_redirect_url="/home/"),
    "permission": of_braces(braces.PermissionRequiredMixin, permission_required="transparency.view_entry"),
    "permissions": of_braces(
        braces.MultiplePermissionsRequiredMixin, permissions={"any": ["transparency.view_entry"]}, raise_exception=True
    ),
    "group": of_braces(braces.GroupRequiredMixin, group_required="editors"),
    "test": of_braces(braces.UserPassesTestMixin, test_func=lambda self, user: user.is_staff),
    "superuser": of_braces(braces.SuperuserRequiredMixin),
    "staff": of_braces(braces.StaffuserRequiredMixin),
    "ssl": of_braces(braces.SSLRequiredMixin),
    "canonical": of_braces(braces.CanonicalSlugDetailMixin),
    "json": of_braces(braces.JSONResponseMixin),
    "headers": of_braces(braces.HeaderMixin, headers={"X-Braces": "yes"}),
}

# -- REST framework


class EntrySerializer(serializers.ModelSerializer):  # type: ignore[type-arg]
    class Meta:
        model = Entry
        fields = ["id", "slug", "title"]
        read_only_fields = ["slug"]


class Retrieve(generics.RetrieveAPIView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    serializer_class = EntrySerializer


class RetrieveBySlug(Retrieve):
    lookup_field = "slug"


class RetrieveJson(Retrieve):
    renderer_classes = [renderers.JSONRenderer]


class RetrieveUpdateDestroy(generics.RetrieveUpdateDestroyAPIView):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    serializer_class = EntrySerializer


class Entries(viewsets.ModelViewSet):  # type: ignore[type-arg]
    queryset = Entry.public.all()
    serializer_class = EntrySerializer


class OnceAMinute(UserRateThrottle):
    scope = "once"
    timer = staticmethod(lambda: 1_000.0)  # the two passes take no equal time


class OwnPermission(permissions.BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return "k" in request.GET or bool(request.user.is_staff)


class ObjectPermission(permissions.BasePermission):
    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        return bool(request.user.is_staff)


class Throttled(Retrieve):
    throttle_classes = [OnceAMinute]


class ForUsers(Retrieve):
    permission_classes = [permissions.IsAuthenticated]


class ByModelPermissions(RetrieveUpdateDestroy):
    permission_classes = [permissions.DjangoModelPermissionsOrAnonReadOnly]


class ByOwnPermission(Retrieve):
    permission_classes = [OwnPermission]


class ByObjectPermission(Retrieve):
    permission_classes = [ObjectPermission]


class OwnInitial(Retrieve):
    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not request.user.is_staff:
            raise exceptions.PermissionDenied


class OwnCheck(Retrieve):
    def check_permissions(self, request: Any) -> None:
        if not request.user.is_authenticated:
            self.permission_denied(request, message="own words")


class OwnObject(Retrieve):
    def get_object(self) -> Any:
        return Entry.public.filter(pk=self.kwargs["pk"]).first() or Entry.objects.get(pk=1)


class OwnFinalize(Retrieve):
    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["X-Final"] = "yes"
        return response


class OwnHandler(Retrieve):
    def handle_exception(self, exc: Exception) -> Response:
        return Response({"error": type(exc).__name__}, status=404)


class OwnRetrieve(Entries):
    def retrieve(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        try:
            response: Response = super().retrieve(request, *args, **kwargs)
        except Http404:
            return Response({"rows": 0})
        return response


@api_view(["GET", "POST"])
def rest_function(request: Any, pk: int) -> Response:
    return Response(EntrySerializer(get_object_or_404(Entry.public, pk=pk)).data)


@api_view(["GET"])
@permissions_of([permissions.IsAdminUser])
def rest_function_for_staff(request: Any, pk: int) -> Response:
    return Response(EntrySerializer(get_object_or_404(Entry.public, pk=pk)).data)


REST: dict[str, type[generics.GenericAPIView[Any]]] = {
    "retrieve": Retrieve,
    "json": RetrieveJson,
    "change": RetrieveUpdateDestroy,
    "throttled": Throttled,
    "for-users": ForUsers,
    "model-permissions": ByModelPermissions,
    "own-permission": ByOwnPermission,
    "object-permission": ByObjectPermission,
    "own-initial": OwnInitial,
    "own-check": OwnCheck,
    "own-object": OwnObject,
    "own-finalize": OwnFinalize,
    "own-handler": OwnHandler,
}

CLASSES: dict[str, type[View]] = {
    "detail-any": DetailAny,
    "update": Update,
    "delete": Delete,
    "by-itself": ByItself,
    "only-post": OnlyPost,
    "in-the-context": InTheContext,
    "redirects": Redirects,
    "denies-in-dispatch": DeniesInDispatch,
    "denies-in-setup": DeniesInSetup,
    "denies-in-get": DeniesInGet,
    "denies-in-queryset": DeniesInQueryset,
    "denies-in-object": DeniesInObject,
    "denies-afterwards": DeniesAfterwards,
    "denies-by-property": DeniesByProperty,
    "model-by-request": ModelByRequest,
    "own-words": OwnWords,
    "own-dispatch": OwnDispatch,
    "makes-its-row": MakesItsRow,
    "falls-back": FallsBack,
    "redirects-in-context": RedirectsInContext,
    "for-staff-or-public": ForStaffOrPublic,
    "saves-who-asks": SavesWhoAsks,
    "async-get": AsyncDispatch,
    "logs-in": LogsIn,
    "raising-login": RaisingLogin,
    "permission": PermissionNeeded,
    "test": TestNeeded,
    "guardian": GuardianDetail,
    "guardian-denies": GuardianDenies,
    "decorated-dispatch": DecoratedDispatch,
    "decorated-get": DecoratedGet,
    "never-cached": NeverCached,
    "awaited": Awaited,
}
