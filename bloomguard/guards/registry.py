"""The registry of the project's guards, and the decorator that fills it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

from django.core.signals import setting_changed
from django.db.models import Model

from ..exceptions import ConfigurationError
from .guard import Guard

_MANY = 20  # names in an error, the nearest ones


class Plans:
    """What requests and writes derive from the guards, the settings and the URLs; each part is made at its first use.

    ``lookups``: model -> how its queries look up one row of a guard. ``routes``: URLconf -> its guarded routes.
    ``tables``: table -> the guards that follow its statements. ``tracked``: model -> how its statements concern guards.
    ``saved``: model -> how its saves concern guards that follow signals. ``known``: name -> definition and tables of
    each guard of this process. ``named``: name and table of each other guard in the state rows, as they were when
    ``tables`` was made.
    """

    def __init__(self) -> None:
        self.lookups: dict[type[Model], tuple[Any, ...]] = {}
        self.routes: dict[Any, Any] = {}
        self.tables: dict[str, tuple[Guard, ...]] | None = None
        self.tracked: dict[type[Model], tuple[Any, ...]] = {}
        self.saved: dict[type[Model], tuple[Any, ...]] = {}
        self.known: dict[str, tuple[str, frozenset[str]]] | None = None
        self.named: frozenset[tuple[str, str]] = frozenset()


class Registry:
    """The project's guards, by name."""

    def __init__(self) -> None:
        self._guards: dict[str, Guard] = {}
        #: Replaced as a whole: a thread that has still seen the old guards stores what it makes of them in the old one.
        self.plans = Plans()
        #: Guards whose name was taken already; a system check reports them.
        self.clashes: list[Guard] = []
        #: What could not be registered, and why; a system check reports it.
        self.refused: list[tuple[Any, str]] = []
        #: The classes of all guards that were ever added.
        self.classes: set[type[Guard]] = set()
        #: The HTTP methods that at least one guard answers.
        self.methods: frozenset[str] = frozenset()
        #: Functions that are called after each change.
        self.listeners: list[Callable[[], None]] = []
        #: Imports the apps' ``guards.py`` if the guards are needed before bloomguard's ``ready()`` has run.
        self.discover: Callable[[], None] | None = None

    def add(self, guard: Guard) -> None:
        """Add ``guard``; if its name is taken, add it to :attr:`clashes` instead."""
        self.classes.add(type(guard))
        if guard.name in self._guards:
            self.clashes.append(guard)
            return
        self._guards[guard.name] = guard
        self.changed()

    def remove(self, guard: Guard) -> None:
        """Remove ``guard``, if it is registered."""
        if self._guards.get(guard.name) is guard:
            del self._guards[guard.name]
            self.changed()

    def changed(self) -> None:
        """Begin new :attr:`plans` and call the listeners."""
        self.methods = frozenset(method for guard in self._guards.values() for method in guard.methods)
        self.replan()
        for listen in self.listeners:
            listen()

    def replan(self) -> None:
        """Begin new :attr:`plans`, because the guards, the settings or the URLs have changed."""
        self.plans = Plans()

    def replan_writes(self) -> None:
        """Begin new :attr:`plans` of writes; keep those of requests, as finding all routes again takes long."""
        plans = Plans()
        plans.lookups, plans.routes, plans.saved = self.plans.lookups, self.plans.routes, self.plans.saved
        self.plans = plans

    def __getitem__(self, name: str) -> Guard:
        """Return the guard ``name``; raises :class:`ConfigurationError` with the nearest names if there is none."""
        try:
            return self._guards[name]
        except KeyError:
            names = sorted(self._guards)
            if len(names) > _MANY:
                names = sorted(get_close_matches(name, names, _MANY, 0.0))
            of_model = [
                guard.name for guard in self._guards.values() if guard.model._meta.label_lower == str(name).lower()
            ]
            if of_model:
                raise ConfigurationError(f"there is no guard {name!r}; that model has {', '.join(of_model)}") from None
            known = ", ".join(names) or "none: an app's guards.py registers them"
            raise ConfigurationError(f"there is no guard {name!r}; known are {known}") from None

    def get(self, name: str) -> Guard | None:
        """Return the guard ``name``, or ``None`` if there is none."""
        return self._guards.get(name)

    def __iter__(self) -> Iterator[Guard]:
        """Iterate the guards, in the order of their registration."""
        discover, self.discover = self.discover, None
        if discover is not None:
            discover()
        return iter(list(self._guards.values()))

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Swallow an error of the block, and undo the registrations of the modules that it could not import.

        These are imported again later, and raise then.
        """
        try:
            yield
        except Exception:
            self._guards = {name: guard for name, guard in self._guards.items() if _is_imported(guard)}
            self.clashes = [guard for guard in self.clashes if _is_imported(guard)]
            self.refused = [(guard, reason) for guard, reason in self.refused if _is_imported(guard)]
            self.classes = {guard for guard in self.classes if _is_imported(guard)}
            self.changed()

    def __len__(self) -> int:
        return len(self._guards)


def _is_imported(guard: Any) -> bool:
    return getattr(guard, "__module__", None) in sys.modules


#: The project's guards.
registry = Registry()

G = TypeVar("G", bound=type[Guard])


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting in ("DATABASE_ROUTERS", "MIDDLEWARE", "ROOT_URLCONF"):
        registry.replan()


setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.guards")


def register(model: type[Model]) -> Callable[[G], G]:
    """Register a guard class for ``model`` (class decorator): ``@register(City)``.

    A mistake stops nothing: a class that cannot be registered guards nothing, and a system check reports it.
    """
    if isinstance(model, type) and issubclass(model, Guard):  # ``@register`` without parentheses
        registry.refused.append((model, "@register has no model"))
        return model

    def decorate(guard: G) -> G:
        if not (isinstance(guard, type) and issubclass(guard, Guard)):
            registry.refused.append((guard, "it is not a subclass of Guard"))
        elif not (isinstance(model, type) and issubclass(model, Model)) or model is Model or model._meta.abstract:
            registry.refused.append((guard, f"@register was given {model!r}, which is not a model with a table"))
        elif model._meta.swapped:
            setting: Any = model._meta.swappable
            instead = "get_user_model()" if setting == "AUTH_USER_MODEL" else model._meta.swapped
            reason = f"@register was given {model._meta.label}, which {setting} replaces; register {instead}"
            registry.refused.append((guard, reason))
        else:
            try:
                registry.add(guard(model))
            except Exception as error:  # of the class's own properties or methods
                registry.refused.append((guard, f"making it raised {type(error).__name__}: {error}"))
        return guard

    return decorate
