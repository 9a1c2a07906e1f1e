"""A URLconf with everything that finding routes by themselves has to understand, and every view that it must leave."""

from __future__ import annotations

from django.conf.urls.i18n import i18n_patterns
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin, PermissionRequiredMixin
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import include, path, re_path, register_converter
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.generic import CreateView, DeleteView, DetailView, ListView, UpdateView
from django.views.generic.detail import SingleObjectMixin
from rest_framework import generics, permissions, routers, serializers, viewsets
from rest_framework.renderers import JSONRenderer

from bloomguard.decorators import guarded

from .models import Article, Bargain, Place, Product


class HexConverter:
    regex = "[0-9a-f]+"

    def to_python(self, value: str) -> int:
        return int(value, 16)

    def to_url(self, value: int) -> str:
        return f"{value:x}"


register_converter(HexConverter, "hex")


class Text:
    """Answers with the object's own words; a template would only be in the way."""

    def render_to_response(self, context, **kwargs):
        return HttpResponse(f"{type(self).__name__} {self.object.pk}")


class ProductDetail(Text, DetailView):
    model = Product


class BargainDetail(Text, DetailView):
    """Of a proxy: the rows are the same."""

    model = Bargain


class ProductUpdate(Text, UpdateView):
    model = Product
    fields = ("name",)


class ProductDelete(Text, DeleteView):
    model = Product


class Named(Text, DetailView):
    """A narrower queryset: what the guard knows to be absent is absent here too."""

    queryset = Product.objects.filter(name="named")


class OwnQuerySet(Text, DetailView):
    model = Product

    def get_queryset(self):
        return Product.objects.exclude(name="hidden")


class OfOthers(Text, DetailView):
    """Says that it shows products, and shows places."""

    model = Product

    def get_queryset(self):
        return Place.objects.all()


class Forgiving(Text, DetailView):
    """Makes something else of a 404."""

    model = Product

    def get(self, request, *args, **kwargs):
        from django.http import Http404

        try:
            return super().get(request, *args, **kwargs)
        except Http404:
            return HttpResponse("gone", status=410)


class OwnObject(Text, DetailView):
    """Looks up by something else than it says."""

    model = Product

    def get_object(self, queryset=None):
        return get_object_or_404(Product, pk=int(self.kwargs["pk"]) - 1)


class ProductCreate(Text, CreateView):
    model = Product
    fields = ("name",)

    def get(self, request, *args, **kwargs):
        return HttpResponse("a form")


class LikeProduct(SingleObjectMixin, ListView):
    """Lists products, and looks none up."""

    model = Product

    def get(self, request, *args, **kwargs):
        return HttpResponse(f"{self.get_queryset().count()} products")


class ArticleDetail(Text, DetailView):
    """Shows deleted ones too."""

    model = Article


class AliveArticle(Text, DetailView):
    queryset = Article.objects.filter(deleted=False)


class AliveArticleByPk(Text, DetailView):
    queryset = Article.objects.filter(deleted=False)


class Private(LoginRequiredMixin, Text, DetailView):
    model = Product


class Permitted(PermissionRequiredMixin, Text, DetailView):
    model = Product
    permission_required = "shop.view_product"


@method_decorator(login_required, name="dispatch")
class Decorated(Text, DetailView):
    model = Product


class ProductSerializer(serializers.ModelSerializer):
    class Meta:
        model = Product
        fields = ("id", "name")


class Rest:
    queryset = Product.objects.all()
    serializer_class = ProductSerializer
    renderer_classes = (JSONRenderer,)


class RestViewSet(Rest, viewsets.ModelViewSet):
    pass


class RestReader(Rest, viewsets.ReadOnlyModelViewSet):
    lookup_url_kwarg = "number"

    def get_queryset(self):
        return Product.objects.exclude(name="hidden")


class RestPrivate(Rest, generics.RetrieveAPIView):
    permission_classes = (permissions.IsAuthenticated,)


class RestArticle(generics.RetrieveAPIView):
    queryset = Article.objects.filter(deleted=False)
    lookup_field = "slug"
    renderer_classes = (JSONRenderer,)

    def get(self, request, *args, **kwargs):
        return HttpResponse(f"article {self.get_object().pk}")


def product(request, pk):
    return HttpResponse(f"product {get_object_or_404(Product, pk=pk).pk}")


guarded_product = guarded("auto", arg="number")(lambda request, number: product(request, number))

router = routers.SimpleRouter()
router.register("viewset", RestViewSet)
router.register("reader", RestReader, basename="reader")

inner = [
    path("<int:pk>/", ProductDetail.as_view(), name="detail"),
    re_path(r"^(?P<pk>[0-9]+)/edit/$", ProductUpdate.as_view(), name="edit"),
]

urlpatterns = [
    path("p/0/", lambda request: HttpResponse("the first one")),
    path("p/<int:pk>/", ProductDetail.as_view(), name="detail"),
    path("unnamed/<int:pk>/", ProductDetail.as_view()),
    path("hex/<hex:pk>/", ProductDetail.as_view(), name="hex"),
    path("str/<str:pk>", ProductDetail.as_view(), name="str"),
    path("other-kwarg/<int:number>/", ProductDetail.as_view(pk_url_kwarg="number"), name="other-kwarg"),
    path("given/<int:pk>/", DetailView.as_view(model=Product), name="given"),
    path("fixed/<int:pk>/", ProductDetail.as_view(), {"pk": 7}, name="fixed"),
    path("proxy/<int:pk>/", BargainDetail.as_view(), name="proxy"),
    path("update/<int:pk>/", ProductUpdate.as_view(), name="update"),
    path("delete/<int:pk>/", ProductDelete.as_view(), name="delete"),
    path("narrow/<int:pk>/", Named.as_view(), name="narrow"),
    path("own-queryset/<int:pk>/", OwnQuerySet.as_view(), name="own-queryset"),
    path("of-others/<int:pk>/", OfOthers.as_view(), name="of-others"),
    path("forgiving/<int:pk>/", Forgiving.as_view(), name="forgiving"),
    path("own-object/<int:pk>/", OwnObject.as_view(), name="own-object"),
    path("create/<int:pk>/", ProductCreate.as_view(), name="create"),
    path("like/<int:pk>/", LikeProduct.as_view(), name="like"),
    path("wrapped/<int:pk>/", never_cache(ProductDetail.as_view()), name="wrapped"),
    path("function/<int:pk>/", product, name="function"),
    path("guarded/<int:number>/", guarded_product, name="guarded"),
    path("topped/<int:number>/", never_cache(guarded_product), name="topped"),
    path("private/<int:pk>/", Private.as_view(), name="private"),
    path("permitted/<int:pk>/", Permitted.as_view(), name="permitted"),
    path("decorated/<int:pk>/", Decorated.as_view(), name="decorated"),
    path("deleted/<slug:slug>/", ArticleDetail.as_view(), name="deleted"),
    path("alive/<slug:slug>/", AliveArticle.as_view(), name="alive"),
    path("alive-pk/<int:pk>/<slug:slug>/", AliveArticleByPk.as_view(), name="alive-pk"),
    path("alive-both/<int:pk>/<slug:slug>/", AliveArticle.as_view(query_pk_and_slug=True), name="alive-both"),
    re_path(r"^optional/(?:(?P<pk>[0-9]+)/)?(?:(?P<slug>x)/)?$", ProductDetail.as_view(slug_field="name"), name="opt"),
    re_path(r"^regex/(?P<pk>[0-9]{1,3})$", ProductDetail.as_view(), name="regex"),
    path("space/", include((inner, "one"), namespace="space")),
    path("deep/<int:shop>/", include([path("and/", include((inner, "two")))])),
    path("rest/", include(router.urls)),
    path("rest/private/<int:pk>/", RestPrivate.as_view(), name="rest-private"),
    path("rest/article/<slug:slug>/", RestArticle.as_view(), name="rest-article"),
]

in_languages = [*urlpatterns, *i18n_patterns(path("p/<int:pk>/", ProductDetail.as_view(), name="in-language"))]
