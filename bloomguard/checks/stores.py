"""Checks of the setting ``BLOOMGUARD``, its stores, and the configuration of their servers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Info, Warning, register

from .. import conf
from ..exceptions import ConfigurationError, StoreUnavailable
from ..stores import stores


@register("bloomguard", deploy=True)
def check_servers(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the current configuration of the stores' servers."""
    messages: list[CheckMessage] = []
    if not conf.settings.is_enabled:
        messages.append(
            Info(
                "BLOOMGUARD['ENABLED'] is not True, so no guard answers; writes still update the filters.",
                hint="Set it to True, or remove the line, to let the guards answer.",
                id="bloomguard.I039",
            )
        )
    with suppress(ConfigurationError):  # reported as W109
        for alias in conf.settings.stores:
            with suppress(ConfigurationError, StoreUnavailable):  # reported by other checks
                messages += stores[alias].check_deployed()
    return messages


@register("bloomguard")
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the setting ``BLOOMGUARD`` and its stores."""
    try:
        raw, aliases = conf.settings.raw, list(conf.settings.stores)
    except ConfigurationError as error:
        return [_unusable(error)]
    messages: list[CheckMessage] = []
    for unknown in sorted(map(str, set(raw) - conf.KNOWN)):
        messages.append(
            Warning(
                f"BLOOMGUARD has the unknown key {unknown!r}.",
                hint=f"Known keys are {', '.join(sorted(conf.KNOWN))}.",
                id="bloomguard.W108",
            )
        )
    if not isinstance(enabled := raw.get("ENABLED", True), bool):
        messages.append(
            Warning(
                f"BLOOMGUARD['ENABLED'] is {enabled!r}, neither True nor False, so no guard answers.",
                hint="A setting from the environment is text: write os.environ.get(...) == '1'.",
                id="bloomguard.W117",
            )
        )
    for alias in aliases:
        for unknown in sorted(map(str, set(conf.settings.stores[alias]) - {"BACKEND", "OPTIONS"})):
            messages.append(
                Warning(
                    f"the store {alias!r} has the unknown key {unknown!r}.",
                    hint="Known keys are BACKEND and OPTIONS. Did you mean a path (FileStore) or a url (RedisStore) in "
                    "OPTIONS?",
                    id="bloomguard.W115",
                )
            )
        try:
            messages += stores[alias].check()
        except ConfigurationError as error:
            messages.append(_unusable(error))
        except StoreUnavailable as error:  # the client cannot be created while its servers do not answer
            messages.append(
                Warning(
                    f"the store {alias!r} does not answer: {str(error).rstrip('.')}.",
                    hint="Until it answers, no guard answers a request, and each save disables its guards.",
                    id="bloomguard.W021",
                )
            )
    return messages


def _unusable(error: ConfigurationError) -> Warning:
    is_redis = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "redis"
    return Warning(
        f"{error}.",
        hint="Install bloomguard with the extra redis, see docs/redis.md." if is_redis else "See docs/settings.md.",
        id="bloomguard.W109",
    )
