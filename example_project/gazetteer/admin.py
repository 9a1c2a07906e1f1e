"""Cities are looked up here; listings are written, hidden and brought back."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from .models import City, Listing


@admin.register(City)
class CityAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    list_display = ["name", "country", "population", "timezone"]
    search_fields = ["name"]
    show_full_result_count = False


@admin.register(Listing)
class ListingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    list_display = ["title", "city", "price", "deleted_at"]
    list_filter = [("deleted_at", admin.EmptyFieldListFilter)]
    list_select_related = ["city"]
    search_fields = ["title", "slug"]
    prepopulated_fields = {"slug": ["title"]}
    autocomplete_fields = ["city"]
    actions = ["soft_delete", "restore"]

    @admin.action(description="Delete the selected listings (they can be restored)", permissions=["change"])
    def soft_delete(self, request: HttpRequest, queryset: QuerySet[Listing]) -> None:
        changed = queryset.update(deleted_at=timezone.now())
        self.message_user(request, f"{changed} deleted.", messages.SUCCESS)

    @admin.action(description="Restore the selected listings", permissions=["change"])
    def restore(self, request: HttpRequest, queryset: QuerySet[Listing]) -> None:
        changed = queryset.update(deleted_at=None)
        self.message_user(request, f"{changed} restored.", messages.SUCCESS)
