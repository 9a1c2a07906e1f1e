"""Django REST framework's views and viewsets, with their own 404.

    class CityViewSet(GuardedObjectMixin, ModelViewSet):
        queryset = City.objects.all()

The guard is asked where the view fetches its object, after authentication, permissions and throttles; the answer is
REST framework's own. ``@guarded`` may stand on a view's methods, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import Http404

from ..views import confirm_missing, is_absent

if TYPE_CHECKING:
    from django.db.models import QuerySet


class GuardedObjectMixin:
    """``get_object`` raises ``Http404`` without a query where a guard of the model knows that there is no such object.

    Stands before ``GenericAPIView``, a generic view or a viewset. The guards are those of the model whose lookup is
    ``lookup_field``; for the rest see :class:`bloomguard.views.GuardedObjectMixin`.
    """

    if TYPE_CHECKING:
        request: Any
        kwargs: dict[str, Any]
        queryset: QuerySet[Any] | None
        lookup_field: str
        lookup_url_kwarg: str | None

        def get_queryset(self) -> QuerySet[Any]: ...
        def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]: ...

    def get_object(self) -> Any:
        """As REST framework's, ``Http404`` and its message too."""

        def rows() -> QuerySet[Any]:
            return self.filter_queryset(self.get_queryset())

        given = self.get_queryset() if self.queryset is None else self.queryset
        model = getattr(given, "model", None)  # REST framework takes any iterable
        value = self.kwargs.get(self.lookup_url_kwarg or self.lookup_field)
        if model is not None and is_absent(self.request, model, {self.lookup_field: value}, rows):
            raise Http404(f"No {model._meta.object_name} matches the given query.")
        try:
            return super().get_object()  # type: ignore[misc]
        except Http404:
            if model is not None:
                confirm_missing(model, self.lookup_field, value)
            raise
