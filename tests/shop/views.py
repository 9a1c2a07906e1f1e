"""Ordinary views: each fetches one row, or answers 404."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import aget_object_or_404, get_object_or_404

from bloomguard.decorators import guarded

from .models import Article, Diary, Order, Place, Price, Product


def product(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(f"product {get_object_or_404(Product, pk=pk).pk}")


async def product_async(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(f"product {(await aget_object_or_404(Product, pk=pk)).pk}")


def product_str(request: HttpRequest, pk: str) -> HttpResponse:
    """A lenient view: what is no number is not found."""
    try:
        return product(request, pk)  # type: ignore[arg-type]
    except ValueError as error:
        raise Http404 from error


@guarded("product", arg="number")
def product_decorated(request: HttpRequest, number: int) -> HttpResponse:
    return product(request, number)


@guarded("product")
async def product_decorated_async(request: HttpRequest, pk: int) -> HttpResponse:
    return await product_async(request, pk)


def order(request: HttpRequest, pk: str) -> HttpResponse:
    from django.core.exceptions import ValidationError

    try:
        return HttpResponse(f"order {get_object_or_404(Order, pk=pk).pk}")
    except ValidationError as error:
        raise Http404 from error


def article(request: HttpRequest, slug: str) -> HttpResponse:
    return HttpResponse(f"article {get_object_or_404(Article, slug=slug, deleted=False).pk}")


def place(request: HttpRequest, code: str, slug: str) -> HttpResponse:
    return HttpResponse(f"place {get_object_or_404(Place, country=code, slug=slug).pk}")


def price(request: HttpRequest, amount: str) -> HttpResponse:
    from django.core.exceptions import ValidationError

    try:
        return HttpResponse(f"price {get_object_or_404(Price, amount=amount).pk}")
    except ValidationError as error:
        raise Http404 from error


def diary(request: HttpRequest, day: str) -> HttpResponse:
    from django.core.exceptions import ValidationError

    try:
        return HttpResponse(f"diary {get_object_or_404(Diary, day=day).pk}")
    except ValidationError as error:
        raise Http404 from error
