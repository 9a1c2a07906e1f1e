"""The 404 page that is the same for everybody is rendered once, and no other is."""

from __future__ import annotations

import pytest
from django.http import HttpResponseNotFound
from django.test import RequestFactory
from django.views.defaults import page_not_found

from bloomguard.answers import pages
from bloomguard.answers.responses import not_found, not_found_now
from tests.guarding import urlconf


@pytest.fixture
def templates(settings, tmp_path):
    """``templates({"404.html": "..."})`` are the site's."""

    def use(texts, **options):
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        settings.TEMPLATES = [
            {"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [tmp_path], "OPTIONS": options}
        ]

    return use


def ask(path="/x/"):
    return not_found(RequestFactory().get(path), "city")


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"404.html": "gone {# to lunch #}{% comment %}{{ x }}{% endcomment %}"},
        {"404.html": '{% extends "base.html" %}{% load i18n %}{% block a %}gone{% endblock %}',
         "base.html": "<p>{% block a %}here{% endblock %}</p>"},
    ],
)  # fmt: skip
def test_a_page_of_nothing_but_text_is_rendered_once(templates, texts):
    """It is what Django's own handler renders, byte for byte, and not to be stored."""
    templates(texts)
    expected = page_not_found(RequestFactory().get("/x/"), None).content

    assert not_found_now(RequestFactory().get("/x/")) is None
    first = ask()
    again = not_found_now(RequestFactory().get("/y/"))
    assert first.content == again.content == expected
    assert (again.status_code, again["Cache-Control"], again["Content-Length"]) == (404, "no-store", str(len(expected)))


@pytest.mark.parametrize(
    "texts",
    [
        {"404.html": "{{ request_path }}"},
        {"404.html": "{% block a %}{{ exception }}{% endblock %}"},
        {"404.html": "{% if 1 %}{{ request_path }}{% endif %}"},
        {"404.html": "{% now 'f' %}"},
        {"404.html": '{% extends "base.html" %}{% block a %}x{% endblock %}', "base.html": "{{ request_path }}"},
        {"404.html": '{% extends "base.html" %}{% block a %}{{ block.super }}{% endblock %}',
         "base.html": "{% block a %}{{ request_path }}{% endblock %}"},
        {"404.html": "{% extends request_path|default:'base.html' %}", "base.html": "", "%2Fx%2F": ""},
    ],
)  # fmt: skip
def test_a_page_that_may_change_is_rendered_each_time(templates, texts):
    """Any variable or tag may depend on the request, in the page or in what it extends."""
    templates(texts)
    request = RequestFactory().get("/x/")

    assert pages.static_body(request) is None
    assert not_found_now(request) is None


def test_a_template_that_may_come_or_change_is_looked_for_each_time(templates):
    """Loaders that cache nothing are asked again."""
    templates({}, loaders=["django.template.loaders.filesystem.Loader"])
    before = ask().content
    templates({"404.html": "there now"}, loaders=["django.template.loaders.filesystem.Loader"])

    assert b"Not Found" in before
    assert ask().content == b"there now"


def test_another_handler_makes_its_own_page(templates, settings):
    """Only Django's handler is known to make the same page of the same template."""
    templates({"404.html": "text"})
    ask()
    settings.ROOT_URLCONF = urlconf(handler404=lambda request, exception: HttpResponseNotFound(request.path))

    assert [ask(path).content for path in ("/a/", "/b/")] == [b"/a/", b"/b/"]


def test_the_requests_own_urlconf_makes_the_page(templates):
    """``handler404`` is that of ``request.urlconf``, as for any other 404 of that request."""
    templates({})
    request = RequestFactory().get("/x/")
    request.urlconf = urlconf(handler404=lambda request, exception: HttpResponseNotFound("theirs"))

    assert not_found(request, "city").content == b"theirs"
