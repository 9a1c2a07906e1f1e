"""Checks of mistakes that Python and Django accept silently: misspelt names, and guards that are not registered."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

from ..guards import Guard, registry

OPTIONS = tuple(name for name in Guard.__annotations__ if hasattr(Guard, name) and not name.startswith("_"))
#: Names that other libraries have for an option.
_OTHER_NAMES = {
    "route": "routes",
    "url_names": "routes",
    "fp_rate": "error_rate",
    "false_positive_rate": "error_rate",
    "size": "capacity",
    "max_elements": "capacity",
    "field": "lookup",
    "fields": "lookup",
    "lookup_field": "lookup",
    "kind": "filter",
    "filter_type": "filter",
    "condition": "alive",
}


@register("bloomguard")
def check_names(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the names of options and of the setting, and that each guard is registered."""
    messages = [message for guard in registry for message in _options(guard)]
    return [*messages, *_unregistered(), *_settings()]


def _options(guard: Guard) -> Iterator[CheckMessage]:
    for cls in type(guard).__mro__[: type(guard).__mro__.index(Guard)]:
        for name in vars(cls):
            close = get_close_matches(name, OPTIONS, 1, 0.8)
            meant = _OTHER_NAMES.get(name) or (close[0] if close else "")
            if meant and not name.startswith("_") and not hasattr(Guard, name):
                yield Warning(
                    f"the guard {guard.name!r} has an attribute {name!r}, which is not an option.",
                    hint=f"Did you mean {meant!r}? The options are {', '.join(OPTIONS)}.",
                    obj=guard.model,
                    id="bloomguard.W018",
                )


def _unregistered() -> Iterator[CheckMessage]:
    for refused, reason in registry.refused:
        yield Warning(
            f"{refused.__module__}.{refused.__qualname__} is not registered, so it guards nothing: {reason}.",
            hint="Write class MyGuard(Guard), and above it @register(Model), with the model to guard.",
            id="bloomguard.W019",
        )
    known = {*registry.classes, *(refused for refused, _ in registry.refused)}
    modules = {f"{config.name}.guards" for config in apps.get_app_configs()}
    for cls in _subclasses(Guard):
        if cls.__module__ in modules and cls not in known and not cls.__subclasses__():
            yield Warning(
                f"{cls.__module__}.{cls.__name__} is not registered, so it guards nothing.",
                hint="Put @register(Model) above the class.",
                id="bloomguard.W019",
            )


def _subclasses(cls: type[Guard]) -> Iterator[type[Guard]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _settings() -> Iterator[CheckMessage]:
    for name in dir(settings):
        bare = name.replace("_", "").rstrip("S")
        if name != "BLOOMGUARD" and name.isupper() and get_close_matches(bare, ["BLOOMGUARD"], 1, 0.85):
            yield Warning(
                f"the settings have {name}, which bloomguard does not read.",
                hint="The setting is named BLOOMGUARD.",
                id="bloomguard.W038",
            )
