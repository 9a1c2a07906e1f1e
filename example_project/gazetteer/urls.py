"""The pages. A country code is two capitals, so its route can't take the place of another one."""

from django.urls import path, register_converter

from . import views


class CountryConverter:
    regex = "[A-Z]{2}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(CountryConverter, "country")

urlpatterns = [
    path("", views.home, name="home"),
    path("cities/<int:pk>/", views.city_detail, name="city-detail"),
    path("listings/<slug:slug>/", views.listing_detail, name="listing-detail"),
    path("<country:country>/<slug:slug>/", views.city_by_slug, name="city-by-slug"),
]
