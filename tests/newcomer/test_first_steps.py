"""The first pages work for somebody who has nothing but them and the wheel: every file, command and line shown."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.processes import end

from .reader import ROOT, Reader, environment, wheel

#: Asks the site for one city, and prints what came of it.
ASK = """
    import django
    django.setup()
    import bloomguard
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        response = Client(SERVER_NAME="localhost").get("/cities/1/")
    asked = sum("places_city" in query["sql"] for query in queries)
    print(response.status_code, response.headers.get("X-Bloomguard"), f"{asked} queries", bloomguard.__file__)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("newcomer")
    return environment(folder / "venv", wheel(folder))


@pytest.fixture
def reader(python):
    """On a disk, not in memory as other tests: there the checks would have something to say."""
    with tempfile.TemporaryDirectory(prefix="bloomguard-newcomer-", dir="/var/tmp") as folder:
        reader = Reader(Path(folder), python)
        yield reader
        if reader.server is not None:
            end(reader.server)


def test_the_readme_leads_from_an_empty_folder_to_a_blocked_lookup(reader, python):
    """No file and no line but those that the README names: the site answers 404 without a query."""
    reader.follow((ROOT / "README.md").read_text())
    reader.environment["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
    (reader.folder / "ask.py").write_text(dedent(ASK))

    printed = reader.expect("python ask.py", "404 city: absent 0 queries")
    assert str(python.parents[1]) in printed
    reader.expect("python manage.py shell -c 'City.objects.create(pk=1)'", "")
    reader.expect("python manage.py explain_guard /cities/1/", "verdict ... maybe")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl")
def test_the_tutorial_can_be_followed_to_the_letter(reader):
    """From startproject to a blocked request, and to a row that is seen at once."""
    reader.follow((ROOT / "docs" / "tutorial.md").read_text())

    assert reader.server is not None
