"""Print the page ``api.md``, made of the public names and their docstrings: ``make api``.

A test compares the page with what this prints.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

#: Title -> introduction, and the public names by the module from which to import them.
SECTIONS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "Guards": (
        'The registry gives a guard by its name: `registry["city"].verdict(7)`.',
        {"bloomguard": ["Guard", "register", "registry", "Verdict"]},
    ),
    "Views": ("", {"bloomguard": ["guarded", "get_or_load", "aget_or_load", "cache_key"]}),
    "Queries and writes": ("", {"bloomguard": ["guarded_lookups", "adding"]}),
    "State rows": ("", {"bloomguard.models": ["GuardState"]}),
    "Requests": (
        "The path of the middleware in `MIDDLEWARE` is `bloomguard.middleware.BloomGuardMiddleware`.",
        {"bloomguard": ["BloomGuardMiddleware"], "bloomguard.wsgi": ["shield"], "bloomguard.asgi": ["shield"]},
    ),
    "Signals": (
        "Errors of receivers are logged and affect no request, write or rebuild.",
        {"bloomguard": ["request_blocked", "guard_fenced", "generation_published", "false_negative_found"]},
    ),
    "Metrics": (
        "",
        {
            "bloomguard": ["read_series", "Series"],
            "bloomguard.contrib.health": ["HealthView"],
            "bloomguard.contrib.prometheus.metrics": ["install", "StateCollector"],
            "bloomguard.contrib.opentelemetry.metrics": ["install"],
        },
    ),
    "Exceptions": (
        "",
        {"bloomguard": ["BloomGuardError", "ConfigurationError", "StoreError"]},
    ),
    "Tests": (
        "pytest has the fixture `armed_guards`, which arms every guard for one test; see [](testing.md).",
        {"bloomguard.testing": ["guards_armed", "guards_off", "assert_blocked", "assert_passes", "GuardTestMixin"]},
    ),
    "Filters": (
        "These need neither Django nor a server. All kinds have the methods of `Filter`, and `copy()`.",
        {
            "bloomguard.filters": [
                *("Filter", "BloomFilter", "CuckooFilter", "ExactBitmap", "CountingBloomFilter", "SpectralBloomFilter"),
                *("ScalableBloomFilter", "ScalableCuckooFilter", "RotatingBloomFilter", "KeyHash", "Stats"),
                *("FilterError", "InvalidShape", "TooLarge", "CorruptFilter", "MismatchedFilters", "FilterFull"),
                "DiscardUnsupported",
            ],
            "bloomguard.filters.sizing": ["optimal_bits", "optimal_hashes", "capacity_of", "error_rate_of"],
        },
    ),
}

#: The public members of classes; those of other classes that the class itself defines without an underscore.
MEMBERS = {
    "BloomGuardMiddleware": [],
    "HealthView": ["require"],
    "StateCollector": [],
    "Registry": ["__getitem__", "__iter__"],
    "Signal": [],
    "Series": ["__getitem__", "total", "by_reason", "times", "false_positive_rate", "mean_check_seconds"],
    "BloomFilter": ["test_and_add", "might_contain_at", "locations", "union", "merge", "intersection", "copy"],
    "CountingBloomFilter": [],
    "CuckooFilter": ["add_unique", "has_spilled"],
    "ExactBitmap": [],
    "Filter": [
        *("add", "add_many", "contains_many", "discard", "clear", "stats"),
        *("to_bytes", "from_bytes", "dump", "load", "to_json", "from_json"),
    ],
    "GuardState": [],
    "KeyHash": ["digest", "digests"],
    "RotatingBloomFilter": [],
    "ScalableBloomFilter": [],
    "ScalableCuckooFilter": ["has_spilled"],
    "SpectralBloomFilter": ["frequency", "frequencies"],
}

INTRODUCTION = """\
# API

<!-- Made by `make api` from the docstrings: change these. -->

The names on this page are public. Everything else is private and may change without notice, also names without an
underscore, and members of public classes that are not listed here. An entry that names no exception raises none of its
own.

[](guard.md) says what the options of a guard do together."""


def page() -> str:
    """Return the page."""
    return "\n\n".join(_parts()) + "\n"


def public_names() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of everything on the page."""
    for _, modules in SECTIONS.values():
        for module, names in modules.items():
            yield from ((module, name) for name in names)


def options(guard: Any) -> list[tuple[str, str, str, str]]:
    """Return name, type, default and meaning of each option, in the order of the class."""
    [cls] = ast.parse(inspect.getsource(guard)).body
    said, aliases = _comments(guard), vars(sys.modules[guard.__module__])
    found = []
    for node in cls.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            name, kind = ast.unparse(node.target), ast.unparse(node.annotation)
            kind = str(aliases[kind] if kind == "Routes" else kind).replace("collections.abc.", "")
            found.append((name, kind, ast.unparse(node.value).replace("'", '"'), said[name]))
    return found


def _parts() -> Iterator[str]:
    yield INTRODUCTION
    for title, (introduction, modules) in SECTIONS.items():
        yield f"## {title}"
        if introduction:
            yield introduction
        for module, names in modules.items():
            for name in names:
                yield from _entry(module, name)


def _entry(module: str, name: str) -> Iterator[str]:
    found = getattr(import_module(module), name)
    yield f"### {name}" if module.count(".") == 0 or "shield" != name != "install" else f"### {name} ({module})"
    is_object = not inspect.isclass(found) and not inspect.isfunction(found)
    signature = [] if is_object else [_wrapped(_signature(name, found))]
    yield "\n".join(["```python", f"from {module} import {name}", *(["", *signature] if signature else []), "```"])
    yield _prose(_comment_of(name) if is_object else inspect.getdoc(found) or "")
    if name == "Guard":
        yield _table(found)
    cls = type(found) if is_object else found
    if inspect.isclass(cls) and not issubclass(cls, BaseException):
        own = [each for each in vars(cls) if not each.startswith("_")]
        lines = [_member(cls, member) for member in MEMBERS.get(cls.__name__, own)]
        if any(lines):
            yield "\n".join(filter(None, lines))


def _comment_of(name: str) -> str:
    """Return the comment of an object that is no class and no function."""
    for module in ("bloomguard.signals", "bloomguard.guards.registry"):
        if text := _comments(import_module(module)).get(name):
            return text
    raise LookupError(f"{name} has no comment #: above it")


def _comments(owner: Any) -> dict[str, str]:
    """Return the comments ``#:`` of a module or class, by the name that is defined below them."""
    found, text = {}, []
    for line in map(str.strip, inspect.getsource(owner).splitlines()):
        if line.startswith("#:"):
            text.append(line[2:].strip())
        elif text:
            found[line.partition(" ")[0].rstrip(":")] = " ".join(text)
            text = []
    return found


def _table(guard: Any) -> str:
    rows = [["option", "type", "default", "meaning"], ["---"] * 4]
    for name, kind, default, meaning in options(guard):
        escaped = kind.replace("|", "\\|")
        rows.append([f"`{name}`", f"`{escaped}`", f"`{default}`", _prose(meaning, width=0)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _member(cls: type, name: str) -> str:
    found = inspect.getattr_static(cls, name)
    if isinstance(found, property):
        return f"- **`{name}`**: {_prose(inspect.getdoc(found) or '', indent='  ')}"
    function = getattr(cls, name)
    if not callable(function):
        text = _comments(cls).get(name) if cls.__name__ != "Guard" else ""
        return f"- **`{name}`**: {_prose(text, indent='  ')}" if text else ""
    return f"- **`{_signature(name, function)}`**: {_prose(inspect.getdoc(function) or '', indent='  ')}"


def _wrapped(signature: str) -> str:
    """Put each parameter of a long signature on a line of its own."""
    if len(signature) <= 100:
        return signature
    parts, depth, at = [""], 0, signature.index("(") + 1
    while depth >= 0:
        character = signature[at]
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == ",":
            parts.append("")
        elif depth >= 0:
            parts[-1] += character
        at += 1
    inside = "".join(f"    {part.strip()},\n" for part in parts)
    return f"{signature[: signature.index('(') + 1]}\n{inside}{signature[at - 1 :]}"


def _signature(name: str, found: Any) -> str:
    """Return the signature as it stands in the source; for a class that is not to be called, its bases."""
    if not inspect.isclass(found):
        return _call(name, found)
    if "__dataclass_fields__" in vars(found):
        return f"class {name}({', '.join(f'{each}: {kind}' for each, kind in found.__annotations__.items())})"
    if (hasattr(found, "contains_many") and name != "Filter") or name == "KeyHash":
        return f"class {_call(name, found.__init__)}".removesuffix(" -> None")
    bases = [base.__name__ for base in found.__bases__ if base.__name__ not in ("object", "Protocol")]
    return f"class {name}({', '.join(bases)})" if bases else f"class {name}"


def _call(name: str, function: Any) -> str:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    given = node.args
    parts = _parameters(given.args, [None] * (len(given.args) - len(given.defaults)) + given.defaults)
    if given.vararg:
        parts.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += _parameters(given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        parts.append(f"**{ast.unparse(given.kwarg)}")
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{before}{name}({', '.join(parts)}){returns}".replace("'", '"')


def _parameters(arguments: list[ast.arg], defaults: Sequence[ast.expr | None]) -> list[str]:
    return [
        ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")
        for argument, default in zip(arguments, defaults)
        if argument.arg not in ("self", "cls")
    ]


def _prose(text: str, *, indent: str = "", width: int = 130) -> str:
    """Convert the reStructuredText of docstrings to Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
    text = re.sub(r"\bdocs/([\w-]+\.md(?:#[\w-]+)?)", r"[](\1)", text)
    if not width:
        return text
    parts = []
    for part in re.split(r"\n\s*\n", text):
        if part.startswith(("    ", ">>>")):
            parts.append(f"```python\n{textwrap.dedent(part)}\n```")
        else:
            filled = textwrap.fill(" ".join(part.split()), width, break_long_words=False, break_on_hyphens=False)
            parts.append(re.sub(r"::$", ":", filled))
    return textwrap.indent("\n\n".join(parts), indent).removeprefix(indent)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "example_project")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    (ROOT / "docs" / "api.md").write_text(page())
