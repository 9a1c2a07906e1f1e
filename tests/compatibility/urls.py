"""No pages: each test has those of its own app."""

urlpatterns: list[object] = []
