from django.urls import path

from . import views

urlpatterns = [
    path("ware/<int:pk>/", views.ware, name="ware"),
    path("note/<slug:slug>/", views.note, name="note"),
]
