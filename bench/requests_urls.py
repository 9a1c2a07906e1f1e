"""The shop's URLs, and its product once more under paths that no guard names."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import aget_object_or_404, get_object_or_404
from django.urls import path

from tests.shop import urls
from tests.shop.models import Product


def row(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(f"product {get_object_or_404(Product, pk=pk).pk}")


async def row_async(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(f"product {(await aget_object_or_404(Product, pk=pk)).pk}")


# Behind the shop's own: Django tries one pattern after the other.
urlpatterns = [
    *urls.urlpatterns[:4],
    path("rows/<int:pk>/", row),
    path("rows-async/<int:pk>/", row_async),
    *urls.urlpatterns[4:],
]
