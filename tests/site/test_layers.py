"""The house: a request needs no numpy, and everything public says what it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import pytest
from django.utils.functional import cached_property as django_cached_property

import bloomguard

ROOT = Path(bloomguard.__file__).parent

FOREIGN_TO_FILTERS = {"numpy", "mmh3", "bitarray"}


def modules():
    """Every module of the package by its name within it, such as ``state.table``; a folder by the folder's."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(module, file, known):
    """What ``module`` imports when it runs: modules of the package by their names within it, others in full."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):  # only what a type checker sees is no import
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"/{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield f"/{node.module}"
                continue
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
            base = ".".join([*parts, *([node.module] if node.module else [])]).lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                yield inner if inner in known else base


def test_filters_import_nothing_but_their_own():
    """``filters`` imports numpy, mmh3, bitarray and the standard library."""
    known = modules()
    allowed = FOREIGN_TO_FILTERS | set(sys.stdlib_module_names)
    found = {
        name.strip("/").partition(".")[0]
        for module, file in known.items()
        if f"{module}.".startswith("filters.")
        for name in imports(module, file, known)
        if name.startswith("/")
    }

    assert found - allowed == set()
    assert found & FOREIGN_TO_FILTERS


def test_the_package_itself_loads_nothing():
    """``import bloomguard`` loads neither Django nor any of its own modules."""
    code = "import bloomguard, sys; print([name for name in sys.modules if name.startswith(('django', 'bloomguard.'))])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", bloomguard.__all__)
def test_public_names_come_from_the_package_itself(name):
    """Each can be imported from ``bloomguard``, and is the one that its module gives; no other name is there."""
    found = getattr(bloomguard, name)

    assert found.__module__.startswith("bloomguard.") or found is getattr(bloomguard.signals, name)
    assert name in {each for names in bloomguard._MODULES.values() for each in names}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = bloomguard.nothing


def public(owner, module):
    """Every public class, function, method and property that ``owner``, the module or a class of it, defines."""
    for name, member in vars(owner).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        is_property = isinstance(plain, (property, cached_property, django_cached_property))
        if name.startswith("_") or not (inspect.isclass(plain) or inspect.isfunction(plain) or is_property):
            continue
        home = plain.fget if isinstance(plain, property) else plain.func if is_property else plain
        if home.__module__ == module.__name__:
            yield f"{owner.__name__}.{name}", getattr(owner, name)
            if inspect.isclass(plain):
                yield from public(plain, module)


#: What Django calls by a name of its own is documented by Django.
DJANGOS_NAMES = {"Meta", "DoesNotExist", "MultipleObjectsReturned", "Command"}


@pytest.mark.parametrize("name", [name for name in modules() if not name.startswith("migrations")])
def test_everything_public_has_a_docstring(name):
    """Modules with anything in them, classes, functions and methods say what they are, or what they override does."""
    path = f"bloomguard.{name}".rstrip(".")
    # What an integration is for need not be there.
    module = pytest.importorskip(path) if name.startswith("contrib.") else importlib.import_module(path)
    without = [
        found
        for found, member in public(module, module)
        if not inspect.getdoc(member) and found.rpartition(".")[2] not in DJANGOS_NAMES
    ]

    assert without == []
    assert module.__doc__ or not modules()[name].read_text().strip()


REQUEST = """
import os, sys, tempfile
from pathlib import Path
import django
from django.conf import settings

folder = Path(sys.argv[1])
settings.configure(
    SECRET_KEY="for a test",
    BASE_DIR=folder,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="tests.shop.urls",
    INSTALLED_APPS=["django.contrib.contenttypes", "bloomguard", "tests.shop"],
    MIDDLEWARE=["bloomguard.middleware.BloomGuardMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"}},
    USE_TZ=True,
    LOGGING_CONFIG=None,
)
django.setup()
if sys.argv[2] == "build":
    from django.core.management import call_command
    from django.db import connection
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        from tests.shop.models import Order, Product
        editor.create_model(Product)
        editor.create_model(Order)
    Product.objects.create(pk=7)
    call_command("rebuild_filter", "product", "order", verbosity=0)
else:
    from tests.site.test_hostile import wsgi_status
    from django.core.wsgi import get_wsgi_application
    assert "numpy" not in sys.modules, "numpy was loaded by the start"
    handler = get_wsgi_application()
    from bloomguard import middleware
    whole, answered = middleware.not_found, []
    middleware.not_found = lambda *args: answered.append(args[1].guard.name) or whole(*args)
    statuses = [wsgi_status(handler, path) for path in (b"/products/7/", b"/products/8/", b"/orders-str/%032x/" % 8)]
    assert statuses == [200, 404, 404], statuses
    assert answered == ["product", "order"], answered
    from tests.shop.models import Product
    Product.objects.create(pk=9)
    assert wsgi_status(handler, b"/products/9/") == 200
    assert "numpy" not in sys.modules, "numpy was loaded by a request or a save"
"""


def test_a_process_that_answers_requests_loads_no_numpy(tmp_path):
    """Starting, guarding requests and saving rows work without numpy, which costs time and 30 MB a worker."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'example_project'}"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    for step in ("build", "ask"):
        result = subprocess.run(
            [sys.executable, "-c", REQUEST, tmp_path, step],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
