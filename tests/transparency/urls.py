"""The site's addresses: each page has one, and says which guard may name it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.urls import include, path, re_path
from rest_framework.routers import DefaultRouter

from . import views


@dataclass(frozen=True, eq=False)
class Page:
    """One view at one address.

    ``guard`` is the guard that names the page's route: only where the view answers the site's own 404 for each ID that
    has no row, or shows by its decorators that it may answer something else.
    """

    name: str
    route: str
    view: Callable[..., Any] | None
    guard: str = ""
    kwarg: Any = "pk"
    address: str = ""  # where the route does not tell it
    model: str = "entry"
    repeat: int = 1  # how often it is asked for in a combination

    @property
    def is_class_based(self) -> bool:
        """Whether ``auto`` looks at the page's view."""
        return self.name.startswith(("class-", "braces-", "rest-", "router", "admin-"))

    def address_of(self, values: Mapping[str, str]) -> str:
        shape = self.address or "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", self.route)
        return shape.format(**values)


def _pages() -> list[Page]:
    number = "<int:pk>/"
    pages = [
        Page("plain", f"plain/{number}", views.plain, "entry"),
        Page("plain-str", "plain-str/<str:pk>/", views.plain, "entry"),
        Page("plain-any", f"plain-any/{number}", views.plain_any, "entry-any"),
        Page("plain-slug", "plain-slug/<slug:slug>/", views.plain_slug, "entry-slug", "slug"),
        Page("first", f"first/{number}", views.first, "entry"),
        Page("exists", f"exists/{number}", views.exists, "entry"),
        Page("values", f"values/{number}", views.values, "entry"),
        Page("listed", f"listed/{number}", views.listed, "entry"),
        Page("note", "note/<str:name>/of/old/", views.note, "note", "name", model="note"),
        Page(
            "place",
            "place/<str:code>/<slug:slug>/",
            views.place,
            "place",
            {"country": "code", "slug": "slug"},
            model="place",
        ),
        Page("awaited", f"awaited/{number}", views.awaited, "entry"),
        Page("awaited-first", "awaited-first/<slug:slug>/", views.awaited_first, "entry-slug", "slug"),
        Page("feed", f"feed/{number}", views.EntryFeed(), "entry"),
        Page("called", f"called/{number}", views.called, "entry"),
        Page("partly", f"partly/{number}", views.partly, "entry"),
        # Named by nobody: these answer something else, or carry the ID elsewhere.
        Page("own-words", f"own-words/{number}", views.own_words),
        Page("gone", f"gone/{number}", views.gone),
        Page("count", f"count/{number}", views.count),
        Page("raw", f"raw/{number}", views.raw),
        Page("locked", f"locked/{number}", views.locked),
        Page("lazily-rendered", f"lazily-rendered/{number}", views.lazily_rendered),
        Page("streamed", f"streamed/{number}", views.streamed),
        Page("unnamed", r"^unnamed/(\d+)/$", views.unnamed, address="/unnamed/{pk}/"),
        Page("by-query", "by-query/", views.by_query, address="/by-query/?pk={pk}"),
        Page("by-session", "by-session/", views.by_session),
        Page("reads-the-user", f"reads-the-user/{number}", views.reads_the_user),
        Page("writes-the-session", f"writes-the-session/{number}", views.writes_the_session),
        Page("redirects-old-slugs", "redirects-old-slugs/<slug:slug>/", views.redirects_old_slugs),
        Page("folds-case", "folds-case/<slug:slug>/", views.folds_case, address="/folds-case/{upper}/"),
        Page("unquotes", "unquotes/<str:name>/", views.unquotes, address="/unquotes/{quoted}/", model="note"),
        Page("falls-back", "falls-back/<slug:slug>/", views.falls_back),
        Page("makes-its-row", f"makes-its-row/{number}", views.makes_its_row, repeat=2),
        Page("makes-its-note", "makes-its-note/<str:name>/", views.makes_its_note, model="note", repeat=2),
        Page("post-only", f"post-only/{number}", views.post_only),
        # Class-based; `auto` finds what there is to be found.
        Page("class-detail", f"class/detail/{number}", views.Detail.as_view(), "entry"),
        Page("class-detail-slug", "class/detail/<slug:slug>/by-slug/", views.Detail.as_view(), "entry-slug", "slug"),
        Page(
            "class-detail-note",
            "class/detail/<str:name>/note/",
            views.DetailOfNote.as_view(),
            "note",
            "name",
            model="note",
        ),
        Page("class-detail-place", "class/place/<str:code>/<slug:slug>/", views.DetailOfPlace.as_view(), model="place"),
        Page("class-by-date", f"class/<int:year>/<int:month>/<int:day>/{number}", views.ByDate.as_view()),
        Page(
            "class-update-note",
            "class/update/<str:pk>/note/",
            views.UpdateNote.as_view(),
            "note",
            address="/class/update/{name}/note/",
            model="note",
        ),
        Page(
            "class-delete-note",
            "class/delete/<str:pk>/note/",
            views.DeleteNote.as_view(),
            address="/class/delete/{name}/note/",
            model="note",
        ),
        Page(
            "class-folds-case",
            "class/folds-case/<slug:slug>/",
            views.FoldsCase.as_view(),
            address="/class/folds-case/{upper}/",
        ),
        Page("class-old-slugs", "class/old-slugs/<slug:slug>/", views.OldSlugs.as_view()),
        Page("rest-slug", "rest/by-slug/<slug:slug>/", views.RetrieveBySlug.as_view()),
        Page("rest-function", f"rest/function/{number}", views.rest_function),
        Page("rest-function-for-staff", f"rest/function-for-staff/{number}", views.rest_function_for_staff),
    ]
    pages += [
        Page(f"decorated-{name}", f"decorated/{name}/{number}", views.decorated(decorator), "entry")
        for name, decorator in views.DECORATORS.items()
    ]
    pages += [
        Page(f"decorated-{name}", f"decorated/{name}/{number}", views.decorated(decorator))
        for name, decorator in views.DECORATORS_UNTOLD.items()
    ]
    pages += [Page(f"class-{name}", f"class/{name}/{number}", view.as_view()) for name, view in views.CLASSES.items()]
    pages += [
        Page(f"braces-{name}", f"braces/{name}/{number}{'<slug:slug>/' if name == 'canonical' else ''}", view.as_view())
        for name, view in views.BRACES.items()
    ]
    pages += [
        Page(f"rest-{name}", f"rest/{name}/{number}", view.as_view(), repeat=2 if name == "throttled" else 1)
        for name, view in views.REST.items()
    ]
    return pages


def _of_the_admin(prefix: str, model: str, key: str) -> list[Page]:
    return [
        Page(f"admin-{prefix}{what}", "", None, address=f"/admin/transparency/{model}/{key}/{what}/", model=model)
        for what in ("change", "delete", "history")
    ]


router = DefaultRouter()
router.register("entries", views.Entries, basename="entries")
router.register("own", views.OwnRetrieve, basename="own")

OWN_PAGES = _pages()

#: Pages that other patterns bring.
PAGES = [
    *OWN_PAGES,
    Page("i18n", "", None, "entry", address="/en/i18n/{pk}/"),
    Page("i18n-de", "", None, address="/de/i18n/{pk}/"),
    Page("space:plain", "", None, "entry", address="/space/plain/{pk}/"),
    Page("router", "", None, address="/router/entries/{pk}/"),
    Page("router-format", "", None, address="/router/entries/{pk}.json"),
    Page("router-own", "", None, address="/router/own/{pk}/"),
    *_of_the_admin("", "entry", "{pk}"),
    *_of_the_admin("note-", "note", "{quoted}"),
    Page("admin-shortcut", "", None, address="/admin/r/{content_type}/{pk}/"),
    Page("no-pattern", "", None, address="/no-pattern/{pk}/"),
    Page("static", "", None, address="/static/{pk}.css"),
]

urlpatterns = [
    *((re_path if page.route.startswith("^") else path)(page.route, page.view, name=page.name) for page in OWN_PAGES),
    path("space/", include(([path("plain/<int:pk>/", views.plain, name="plain")], "space"))),
    path("router/", include(router.urls)),
    path("admin/", admin.site.urls),
    path("log-in/", views.logs_in),
    *i18n_patterns(path("i18n/<int:pk>/", views.plain, name="i18n")),
]

if settings.OWN_HANDLER:
    handler404 = views.not_found
elif settings.FAILING_HANDLER:
    handler404 = views.fails_for_strangers
