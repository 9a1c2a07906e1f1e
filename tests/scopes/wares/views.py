from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from .models import Note, Ware


def ware(request: HttpRequest, pk: int) -> HttpResponse:
    """One ware of the tenant, or of the shard that the request names."""
    rows = Ware.objects.using(request.GET["shard"]) if "shard" in request.GET else Ware.objects.all()
    return HttpResponse(get_object_or_404(rows, pk=pk).name)


def note(request: HttpRequest, slug: str) -> HttpResponse:
    """One note."""
    return HttpResponse(get_object_or_404(Note, slug=slug, hidden=False).slug)
