from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from . import views


def latest(request: HttpRequest) -> HttpResponse:
    return HttpResponse("latest")


urlpatterns = [
    path("products/0/", latest),  # a pattern before the guarded one takes this ID for itself
    path("products/<int:pk>/", views.product, name="product"),
    path("products-str/<str:pk>/", views.product_str, name="product-str"),
    path("products-async/<int:pk>/", views.product_async, name="product-async"),
    path("decorated/<int:number>/", views.product_decorated),
    path("decorated-async/<int:pk>/", views.product_decorated_async),
    path("api/v1/", include(([path("products/<int:product_id>/", lambda r, product_id: views.product(r, product_id),
                                   name="product")], "api"))),
    path("orders/<uuid:pk>/", views.order, name="order"),
    path("orders-str/<str:pk>/", views.order, name="order-str"),
    path("articles/<slug:slug>/", views.article, name="article"),
    path("articles-str/<path:slug>/", views.article, name="article-str"),
    path("places/<str:code>/<slug:slug>/", views.place, name="place"),
    path("prices/<str:amount>/", views.price, name="price"),
    path("diary/<str:day>/", views.diary, name="diary"),
]  # fmt: skip
