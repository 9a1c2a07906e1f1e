"""The catalogues of translations: what the source says, what the ``.po`` files have for it, and the ``.mo`` they make.

``python -m tests.support.catalogs`` brings them up to date: new messages come in untranslated, and the ``.mo`` are made
anew.
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.utils.translation.template import templatize

import bloomguard

PACKAGE = Path(bloomguard.__file__).parent
LOCALES = PACKAGE / "locale"
KEYWORDS = {
    "_": None,
    "gettext": None,
    "gettext_lazy": None,
    "ngettext": (1, 2),
    "pgettext": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}

_TEXT = r"""u(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
_CALL = re.compile(rf"\b(n?p?gettext)\(((?:{_TEXT},?\s*)+)")


def languages() -> list[str]:
    """The languages that there is a catalogue for."""
    return sorted(folder.name for folder in LOCALES.iterdir() if folder.is_dir())


def po(language: str) -> Path:
    """The file that people write."""
    return LOCALES / language / "LC_MESSAGES" / "django.po"


def read(language: str) -> Catalog:
    """The catalogue as people wrote it."""
    with po(language).open("rb") as file:
        return read_po(file, locale=language)


def compiled(catalog: Catalog) -> bytes:
    """The catalogue as gettext reads it."""
    buffer = io.BytesIO()
    write_mo(buffer, catalog)
    return buffer.getvalue()


@functools.cache
def source() -> Catalog:
    """Every message of the package's Python and templates."""
    catalog = Catalog(project="bloomguard", charset="utf-8")
    for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]):
        text = file.read_text()
        if file.suffix == ".html":
            # Django leaves letters in place of everything else, so only the calls are Python.
            calls = _CALL.findall(templatize(text))
            text = "\n".join(f"{function}({texts.rstrip(' ,')}, 0)" for function, texts in calls)
        for _line, message, comments, context in extract("python", io.BytesIO(text.encode()), keywords=KEYWORDS):
            where = [(os.fspath(file.relative_to(PACKAGE)), None)]
            catalog.add(message, locations=where, auto_comments=comments, context=context)
    return catalog


def update() -> None:
    """Bring the files up to date with the source, and with each other."""
    found = source()
    for language in languages():
        catalog = read(language)
        catalog.update(found, no_fuzzy_matching=True, update_creation_date=False)
        catalog.obsolete.clear()
        with po(language).open("wb") as file:
            write_po(file, catalog, width=120, omit_header=False, include_lineno=False, sort_output=True)
        po(language).with_suffix(".mo").write_bytes(compiled(read(language)))


if __name__ == "__main__":
    settings.configure()
    update()
    sys.exit()
