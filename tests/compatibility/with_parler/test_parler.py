"""django-parler: texts of a row in a table of translations, which has slugs of its own."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import translation
from parler.utils.context import switch_language
from parler.views import TranslatableSlugMixin

from bloomguard import guarded_lookups, registry
from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import Recipe

pytestmark = pytest.mark.django_db(transaction=True)
Translation = Recipe._parler_meta.root_model


class Translated(TranslatableSlugMixin, Page):
    model = Recipe


def by_slug(request, language, slug):
    row = get_object_or_404(Translation, language_code=language, slug=slug)
    return HttpResponse(f"row {row.master_id}")


def recipe(number):
    return Recipe.objects.get(number=number)


@pytest.fixture
def site(rules):
    """Three recipes in English, the first also in German; parler's cache is empty."""
    cache.clear()
    for n in range(3):
        Recipe.objects.create(number=n, slug=f"soup-{n}", title="Soup")
    recipe(0).create_translation("de", slug="suppe-0", title="Suppe")
    rules.rebuild()
    yield rules
    cache.clear()


def creates():
    Recipe.objects.create(number=7, slug="new")


def creates_in_another_language():
    Recipe.objects.language("de").create(number=7, slug="neu")


def creates_rows_and_translations_in_bulk():
    rows = Recipe.objects.bulk_create(Recipe(number=n) for n in (7, 8))
    Translation.objects.bulk_create(
        Translation(master=row, language_code=code, slug=f"new-{row.number}") for row in rows for code in ("en", "de")
    )


def gets_or_creates():
    row, created = Recipe.objects.get_or_create(number=7, defaults={"slug": "new", "title": "New"})
    assert created
    assert row.slug == "new"


def translates():
    recipe(1).create_translation("de", slug="suppe-1")


def translates_by_switching():
    row = recipe(1)
    with switch_language(row, "de"):
        row.slug = "suppe-1"
        row.save()


def renames_in_the_current_language():
    row = recipe(0)
    row.slug = "stew"
    row.save()


def renames_by_update():
    Translation.objects.filter(language_code="de").update(slug="eintopf")


def deletes_a_translation():
    recipe(0).delete_translation("de")


def deletes_with_all_translations():
    recipe(0).delete()


def deletes_what_is_translated():
    Recipe.objects.translated("de").delete()


def is_rolled_back():
    with transaction.atomic():
        recipe(0).delete()
        Recipe.objects.create(number=7, slug="new")
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(creates, creates_in_another_language, creates_rows_and_translations_in_bulk, gets_or_creates),
        *(translates, translates_by_switching, renames_in_the_current_language, renames_by_update),
        *(deletes_a_translation, deletes_with_all_translations, deletes_what_is_translated, is_rolled_back),
    ],
)
def test_what_rows_and_translations_write_is_followed(write, site):
    """By the guards of the rows, and by that of the translations' slugs."""
    with site.follow("with_parler_recipe_translation"):
        write()


def test_rows_and_translations_are_looked_up(site, settings):
    settings.ROOT_URLCONF = urlconf(
        path("recipes/<int:pk>/", Page.as_view(model=Recipe)), path("<str:language>/<slug:slug>/", by_slug)
    )

    site.look_up("recipe", Recipe.objects)
    site.look_up("recipe", Recipe.objects.language("de"))
    site.look_up("recipe-by-number", Recipe.objects)
    site.look_up("translation", Translation.objects)
    with guarded_lookups():
        assert recipe(0).slug == "soup-0"
        assert Recipe.objects.language("de").get(number=0).slug == "suppe-0"
        assert Recipe.objects.translated("de", slug="suppe-0").get().number == 0
    site.visit("recipe", "/recipes/%s/")
    site.visit("translation", "/%s/%s/")


def test_a_page_that_tries_several_languages_finds_the_row_in_each(site, settings):
    """``TranslatableSlugMixin`` joins the translations; such a query is sent, and nothing is denied."""
    settings.ROOT_URLCONF = urlconf(path("<slug:slug>/", Translated.as_view()))
    absent = site.missing(registry["translation"])[1]

    assert site.client.get("/soup-1/").status_code == 200
    assert site.client.get("/suppe-0/").status_code == 404
    with translation.override("de"):
        assert site.client.get("/suppe-0/").status_code == 200
        assert site.client.get("/soup-1/").status_code == 200  # the fallback
    assert site.client.get(f"/{absent}/").status_code == 404
