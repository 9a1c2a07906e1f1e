"""What is public: the names, the members of ``Guard``, and the page that lists them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import bloomguard
from bloomguard import Guard
from tests.shop.models import Product
from tests.support.guarding import make_guard

DOCS = Path(__file__).parents[2] / "docs"


def load(path):
    """Import a script by its path."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_api = load(DOCS / "make_api.py")

OPTIONS = {
    *("name", "lookup", "routes", "alive", "filter", "error_rate", "capacity", "store", "sync", "mode", "methods"),
    *("lookups", "public", "scope"),
}
OVERRIDDEN = {"applies", "normalize", "scopes"}
CALLED = {"verdict", "averdict", "filter_existing", "afilter_existing"}


def public(owner):
    return {name for name in dir(owner) if not name.startswith("_")}


def test_a_guard_has_what_a_project_declares_and_calls():
    """Exactly the options, the methods to override and to call, and on an instance its model: 22 names."""
    assert public(Guard) == OPTIONS | OVERRIDDEN | CALLED
    assert public(make_guard(Product)) == OPTIONS | OVERRIDDEN | CALLED | {"model"}
    assert len(public(make_guard(Product))) == 22


def test_the_package_gives_its_public_names():
    """``__all__`` is what a type checker sees, and what is loaded on first use."""
    tree = ast.parse(Path(bloomguard.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = {alias.name for node in block.body for alias in node.names}

    assert imported == set(bloomguard.__all__) == {name for names in bloomguard._MODULES.values() for name in names}
    assert bloomguard.__all__ == sorted(bloomguard.__all__)


@pytest.mark.parametrize("module", ["bloomguard", "bloomguard.testing", "bloomguard.filters"])
def test_every_public_name_is_on_the_page(module):
    """Each name of ``__all__`` has its heading and its import on the page."""
    page = (DOCS / "api.md").read_text()
    names = import_module(module).__all__

    assert [name for name in names if not re.search(rf"^### {name}$", page, re.MULTILINE)] == []
    assert [name for name in names if f"\nfrom {module} import {name}\n" not in page] == []


def test_the_pages_use_public_names_only():
    """What the code on the other pages imports from bloomguard is on the page of the API."""
    public_names = {name for _, name in make_api.public_names()} | {"sizing"}
    imports = re.compile(r"(?:^ *|-c \")from bloomguard[\w.]* import ([\w, ]+)", re.MULTILINE)
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    used = {
        name.strip(): page.name
        for page in pages
        for found in imports.findall(page.read_text())
        for name in found.split(",")
    }

    assert {name: page for name, page in used.items() if name not in public_names} == {}
    assert len(used) > 20


def test_the_page_is_what_the_docstrings_say():
    """``make api`` was run after the last change."""
    assert (DOCS / "api.md").read_text() == make_api.page()


def test_the_page_has_every_option_of_a_guard():
    """The table is made from the class: each option with its type, its default and its comment."""
    found = make_api.options(Guard)

    assert {name for name, *_ in found} == OPTIONS
    assert all(kind and default and meaning for _, kind, default, meaning in found)


def functions():
    """Every public function on the page, and every method."""
    for module, name in make_api.public_names():
        found = getattr(import_module(module), name)
        if inspect.isfunction(found):
            yield f"{module}.{name}", found
        elif inspect.isclass(found) and not issubclass(found, BaseException):
            own = [each for each in vars(found) if not each.startswith("_")]
            for member in make_api.MEMBERS.get(name, own):
                if inspect.isroutine(getattr(found, member)):
                    yield f"{name}.{member}", getattr(found, member)


def raised(function):
    """The classes that the function itself raises, by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        error = ast.unparse(node.exc.func) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else ""
        if error[:1].isupper():  # else a function that makes one
            yield error


def test_every_public_function_says_what_it_raises():
    """The docstring names each exception that the function raises; those of what it calls are added by hand."""
    found = [(name, error) for name, function in functions() for error in raised(function)]

    assert ("bloomguard.testing.assert_blocked", "AssertionError") in found
    assert [each for each in found if f"`{each[1]}`" not in inspect.getdoc(dict(functions())[each[0]])] == []
