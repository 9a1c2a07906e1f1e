"""What the admin page says, in the languages that are given with it."""

from __future__ import annotations

import io
import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

pytest.importorskip("babel", reason="the extra `test` brings Babel")

from babel.messages.mofile import read_mo

from tests.support import catalogs

LANGUAGES = catalogs.languages()


def test_the_languages_given():
    """Russian and Simplified Chinese."""
    assert LANGUAGES == ["ru", "zh_Hans"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_is_the_one_that_people_wrote(language):
    """``python -m tests.support.catalogs`` was run after the last change of the ``.po``."""
    file = catalogs.po(language).with_suffix(".mo")

    assert spoken(file.read_bytes()) == spoken(catalogs.compiled(catalogs.read(language)))


def spoken(compiled: bytes) -> tuple[dict[str, str], list[tuple]]:
    """The headers and messages of a ``.mo``, but for the version of Babel that compiled it."""
    catalog = read_mo(io.BytesIO(compiled))
    headers = dict(catalog.mime_headers)
    del headers["Generated-By"]
    return headers, [(message.context, message.id, message.string) for message in catalog if message.id]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_is_translated(language):
    """All that the source says, and nothing else, in every plural form."""
    catalog, source = catalogs.read(language), catalogs.source()

    assert {message.id for message in catalog if message.id} == {message.id for message in source if message.id}
    assert len(catalog) > 50
    assert not catalog.obsolete
    for message in catalog:
        forms = message.string if isinstance(message.string, tuple) else (message.string,)
        assert all(forms), message.id
        assert not message.fuzzy or not message.id
        assert not isinstance(message.id, tuple) or len(forms) == catalog.num_plurals


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_survive_translation(language):
    """Each form has the very placeholders of the message, so that no page fails on one."""
    for message in catalogs.read(language):
        if message.id:
            wanted = re.findall(r"%\(\w+\)(?:\.\d)?[sdf]", message.id[-1] if message.pluralizable else message.id)
            for form in message.string if message.pluralizable else (message.string,):
                assert sorted(re.findall(r"%\(\w+\)(?:\.\d)?[sdf]", form)) == sorted(wanted), message.id


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("zh-hans", ["守卫", "已拦截", "尚无过滤器", "重建", "避免的查询"]),
        ("ru", ["Защиты", "Заблокировано", "Фильтра ещё нет", "Перестроить", "пропускают все запросы"]),
    ],
)
def test_the_page_speaks_the_language(fresh, settings, language, words):
    """Headings, states and operations."""
    settings.ROOT_URLCONF, settings.LANGUAGE_CODE = "config.urls", language
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))

    page = client.get("/admin/bloomguard/guardstate/").content.decode()

    assert [word for word in words if word not in page] == []
    assert "Queries avoided" not in page
