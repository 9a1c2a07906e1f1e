"""Cities are looked up here; listings are written, hidden and brought back."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

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

    # One save a listing instead of one UPDATE for all: see the comment in models.py.

    @admin.action(description="Delete the selected listings (they can be restored)", permissions=["change"])
    def soft_delete(self, request: HttpRequest, queryset: QuerySet[Listing]) -> None:
        for listing in queryset:
            listing.soft_delete()
        self.message_user(request, f"{len(queryset)} deleted.", messages.SUCCESS)

    @admin.action(description="Restore the selected listings", permissions=["change"])
    def restore(self, request: HttpRequest, queryset: QuerySet[Listing]) -> None:
        for listing in queryset:
            listing.restore()
        self.message_user(request, f"{len(queryset)} restored.", messages.SUCCESS)
