"""django-import-export: tables of rows to create, change and delete, one by one and in bulk."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import path, reverse
from import_export import instance_loaders, resources
from tablib import Dataset

from bloomguard import guarded_lookups
from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import Book

pytestmark = pytest.mark.django_db(transaction=True)


class ByNumber(resources.ModelResource):
    """Rows are found by the primary key."""

    class Meta:
        model = Book

    def for_delete(self, row, instance):
        return row["title"] == "gone"


class ByIsbn(ByNumber):
    class Meta:
        model = Book
        fields = ("isbn", "title")
        import_id_fields = ("isbn",)


class InBulk(ByIsbn):
    class Meta(ByIsbn.Meta):
        use_bulk = True
        batch_size = 2


class InBulkByNumber(ByNumber):
    """Rows are read at once before the first is written."""

    class Meta:
        model = Book
        use_bulk = True
        batch_size = 2
        instance_loader_class = instance_loaders.CachedInstanceLoader


class Unchanged(ByIsbn):
    """Rows that are as they were are not written."""

    class Meta(ByIsbn.Meta):
        skip_unchanged = True
        use_transactions = True


BY_ISBN = [ByIsbn, InBulk, Unchanged]
BY_NUMBER = [ByNumber, InBulkByNumber]


@pytest.fixture
def site(rules):
    for n in range(6):
        Book.objects.create(isbn=f"isbn-{n}", title=f"Book {n}")
    rules.rebuild()
    return rules


def dataset(*rows, first="isbn"):
    return Dataset(*rows, headers=[first, "title"] if len(rows[0]) == 2 else [first, "isbn", "title"])


def numbers():
    return list(Book.objects.order_by("pk").values_list("pk", flat=True))


@pytest.mark.parametrize("looked_up", [nullcontext, guarded_lookups])
@pytest.mark.parametrize("resource", BY_ISBN)
def test_new_changed_and_deleted_rows_are_followed(resource, looked_up, site):
    """Also where the import's own queries for existing rows ask the guards."""
    rows = dataset(
        *[(f"new-{n}", f"New {n}") for n in range(5)], ("isbn-1", "Changed"), ("isbn-2", "Book 2"), ("isbn-3", "gone")
    )
    with site.follow("with_import_export_book"), looked_up():
        totals = resource().import_data(rows, raise_errors=True).totals

    assert (totals["new"], totals["update"] + totals["skip"], totals["delete"]) == (5, 2, 1)
    assert set(Book.objects.values_list("isbn", flat=True)) == {
        *(f"new-{n}" for n in range(5)), *(f"isbn-{n}" for n in (0, 1, 2, 4, 5))
    }  # fmt: skip


@pytest.mark.parametrize("resource", BY_NUMBER)
def test_rows_with_given_primary_keys_are_followed(resource, site):
    """New ones, and others whose looked-up text changes. The app sets the table's sequence by SQL of its own."""
    first, second, *_ = numbers()
    changes = [(first, "renamed", "a"), (second, "isbn-1", "gone")]
    rows = dataset(*changes, (5_000, "new-1", "b"), (7_000, "new-2", "c"), first="id")
    with site.follow("with_import_export_book"):
        resource().import_data(rows, raise_errors=True)

    with site.follow("with_import_export_book"):
        assert Book.objects.create(isbn="after").pk > 7_000
    assert {5_000, 7_000} < set(numbers())


@pytest.mark.parametrize("resource", BY_ISBN)
def test_a_dry_run_writes_nothing_and_denies_nothing(resource, site):
    before = numbers()
    with site.follow():
        resource().import_data(dataset(("new", "New"), ("isbn-1", "Changed"), ("isbn-3", "gone")), dry_run=True)

    assert numbers() == before


def test_an_import_that_fails_is_rolled_back(site):
    """The rows before the one that failed are as they were, those that were deleted too."""
    before = numbers()
    rows = dataset(("new", "New"), ("isbn-3", "gone"), ("x" * 20, "T" * 200))

    class Strict(Unchanged):
        class Meta(Unchanged.Meta):
            clean_model_instances = True

    with site.follow():
        result = Strict().import_data(rows, rollback_on_validation_errors=True)

    assert result.has_validation_errors()
    assert numbers() == before


def test_what_the_admin_imports_is_followed(site, staff):
    """First it tries all rows and undoes them, for a preview; then it writes them."""
    file = SimpleUploadedFile("books.csv", dataset(("", "new", "New"), ("", "newer", "Newer"), first="id").csv.encode())
    with site.follow():
        preview = site.client.post(
            reverse("admin:with_import_export_book_import"), {"format": "0", "import_file": file, "resource": ""}
        )
    assert Book.objects.count() == 6
    with site.follow("with_import_export_book"):
        done = site.client.post(
            reverse("admin:with_import_export_book_process_import"), preview.context["confirm_form"].initial
        )

    assert done.status_code == 302
    assert Book.objects.count() == 8


def test_rows_are_looked_up_and_exported(site, settings):
    settings.ROOT_URLCONF = urlconf(path("books/<int:pk>/", Page.as_view(model=Book)))

    site.look_up("book", Book.objects)
    site.look_up("book-by-isbn", Book.objects)
    site.visit("book", "/books/%s/")
    with guarded_lookups():
        assert len(ByIsbn().export()) == 6
