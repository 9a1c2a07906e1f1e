"""Wrong configurations: each gets its message, and none stops ``migrate``, ``explain_guard``, a request or a write."""

from __future__ import annotations

import gc
import io
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import models
from django.db.models import F, Q
from django.test import Client
from django.test.utils import isolate_apps

from bloomguard.exceptions import BloomGuardError
from bloomguard.guards import Guard, register, registry
from bloomguard.guards.meta import GuardMeta
from bloomguard.lookups.context import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from bloomguard.stores.file import FileStore
from tests.conftest import forget
from tests.shop.models import Article, Bundle, Product
from tests.support.guarding import make_guard, registered

CHECK = ["check", "--database", "default"]
FILE, REDIS = "bloomguard.stores.file.FileStore", "bloomguard.stores.redis.RedisStore"
MEMORY = "bloomguard.stores.memory.MemoryStore"
GUARD = "bloomguard.middleware.BloomGuardMiddleware"


class Unreadable:
    """An object that nobody can print."""

    def __repr__(self):
        raise RuntimeError("not to be read")


class UnreadableText(Unreadable, str):
    """A constant that nobody can print."""

    __slots__ = ()


class Unlisted(Sequence):
    """A sequence that nobody can iterate."""

    def __len__(self):
        raise RuntimeError("not to be read")

    __getitem__ = __len__


def joined_by(connector):
    """A condition that no part of Django makes."""
    alive = Q(name="x")
    alive.connector = connector
    return alive


def endless():
    """A condition that contains itself."""
    alive = Q(name="x")
    alive.children.append(alive)
    return alive


def endless_value():
    """A condition whose value contains itself."""
    values = []
    values.append(values)
    return Q(pk__in=values)


#: A guard's options, the check that reports them, and a part of its message.
GUARDS = [
    ({"lookup": "nmae"}, "W101", "shop.Product has no field 'nmae'"),
    ({"lookup": None}, "W101", "lookup is None"),
    ({"lookup": ("id", 5)}, "W101", "lookup is ('id', 5)"),
    ({"lookup": Product._meta.pk}, "W101", "lookup is a "),
    ({"lookup": Unlisted()}, "W101", "lookup is a Unlisted"),
    ({"routes": None}, "W102", "routes is None"),
    ({"routes": [5]}, "W102", "routes is [5]"),
    ({"routes": ["prodcut"]}, "W102", "no URL pattern named 'prodcut'"),
    ({"routes": {"product": 5}}, "W102", "routes is {'product': 5}"),
    ({"routes": {"product": {"nmae": "pk"}}}, "W102", "the field 'nmae' for 'product', which is not in lookup"),
    ({"store": "redis"}, "W103", "there is no store 'redis'"),
    ({"store": ["default"]}, "W103", "store is ['default']"),
    ({"capacity": "many"}, "W104", "capacity is 'many'"),
    ({"error_rate": "1%"}, "W104", "error_rate is '1%'"),
    ({"filter": "blom"}, "W111", "filter is 'blom'"),
    ({"filter": []}, "W111", "filter is []"),
    ({"sync": "statement"}, "W112", "sync is 'statement'"),
    ({"alive": Q(nmae=1)}, "W113", "alive is not allowed: it cannot be queried"),
    ({"alive": Q(pk__lt=float("inf"))}, "W113", "cannot be queried: cannot convert float infinity to integer"),
    ({"alive": Q(pk__in=Unreadable())}, "W113", "has a Unreadable, which is not a constant"),
    ({"alive": Q(("name",))}, "W118", "alive cannot be read: ValueError: a comparison is not a pair"),
    ({"alive": Q(("name", "x", 1))}, "W118", "a comparison is not a pair of a name and a value"),
    ({"alive": Q((1, 2))}, "W118", "a comparison is not a pair of a name and a value"),
    ({"alive": Q("name")}, "W118", "it contains a str, not a comparison"),
    ({"alive": Q(None)}, "W118", "it contains a NoneType, not a comparison"),
    ({"alive": Q(pk=F(None))}, "W118", "alive cannot be read: AttributeError"),
    ({"alive": Q(pk=10**5000)}, "W118", "alive cannot be read: ValueError"),
    ({"alive": Q(name=UnreadableText("x"))}, "W118", "alive cannot be read: RuntimeError: not to be read"),
    ({"alive": endless()}, "W118", "alive cannot be read: RecursionError"),
    ({"alive": endless_value()}, "W118", "alive cannot be read: RecursionError"),
    ({"alive": joined_by("NOR")}, "W118", "its parts are joined by 'NOR'"),
    ({"alive": {"name": "x"}}, "W118", "alive is {'name': 'x'}"),
    ({"alive": Product.objects.all()}, "W118", "alive is a QuerySet"),
    ({"mode": "shade"}, "W114", "mode is 'shade'"),
    ({"lookups": "name"}, "W116", "lookups is 'name'"),
    ({"methods": "GET"}, "W118", "methods is 'GET'"),
    ({"methods": ["get"]}, "W118", "methods is ['get']"),
    ({"public": "yes"}, "W118", "public is 'yes'"),
    ({"normalize": "casefold"}, "W118", "normalize is 'casefold'"),
    ({"applies": True}, "W118", "applies is True"),
    ({"scope": "schemas"}, "W118", "scope is 'schemas'"),
    ({"scope": "schema"}, "W138", "scope is 'schema', but SQLite has no schemas"),
    ({"name": "My Guard"}, "W118", "name is 'My Guard'"),
    ({"fp_rate": 0.01}, "W018", "has an attribute 'fp_rate', which is not an option"),
]
#: Options that decide what a key means: with a mistake in one, no filter can be trusted.
DECIDING = {"lookup", "alive", "store", "filter", "sync", "normalize", "scope"}
OF_KEYS = [given for given, *_ in GUARDS if DECIDING & set(given) and given != {"store": "redis"}]
#: Not what is only misspelt.
REFUSED = [
    attributes
    for attributes, _, _ in GUARDS
    if attributes.get("routes") not in (["prodcut"], {"product": {"nmae": "pk"}}) and "fp_rate" not in attributes
]


class RegionalStore(FileStore):
    """A project's own store, which passes what it does not know on."""

    def __init__(self, alias, *, region, **options):
        super().__init__(alias, **options)


def store(configured):
    """The setting with one store."""
    return {"BLOOMGUARD": {"STORES": {"default": configured}}}


#: Settings, the check that reports them, and a part of its message.
SETTINGS = [
    ({"BLOOMGUARD": ["STORES"]}, "W109", "BLOOMGUARD is of type list; it has to be a dictionary"),
    ({"BLOOMGUARD": {"STORE": {}}}, "W108", "BLOOMGUARD has the unknown key 'STORE'"),
    ({"BLOOMGUARD": {"ENABLED": "0"}}, "W117", "BLOOMGUARD['ENABLED'] is '0', neither True nor False"),
    ({"BLOOMGUARD": {"STORES": [FILE]}}, "W109", "BLOOMGUARD['STORES'] is of type list; it has to be a dictionary"),
    ({"BLOOMGUARD": {"STORES": {"default": FILE}}}, "W109", "['default'] is of type str; it has to be a"),
    ({"BLOOMGUARD": {"STORES": {}}}, "W103", "there is no store 'default'"),
    ({"BLOOMGUARD": {"STORES": {5: {"BACKEND": FILE}}}}, "W109", "has an alias of type int; it has to be text"),
    (store({}), "W109", "'default'] has no BACKEND that is"),
    (store({"BACKEND": 5}), "W109", "has no BACKEND that is the path of a class, such as"),
    (store({"BACKEND": "no.Store"}), "W109", "No module named 'no'"),
    (store({"BACKEND": "pathlib.Path"}), "W109", "is not a subclass of Store"),
    (store({"BACKEND": FILE, "OPTIONS": ["/x"]}), "W109", "must be a mapping"),
    (
        store({"BACKEND": FILE, "OPTIONS": {"folder": "/x"}}),
        "W109",
        "OPTIONS has 'folder'. Known are path",
    ),
    (store({"BACKEND": FILE, "OPTIONS": {"pathh": "/x"}}), "W109", "OPTIONS has 'pathh'. Did you mean 'path'?"),
    (store({"BACKEND": FILE, "OPTIONS": {"PATH": "/x"}}), "W109", "OPTIONS has 'PATH'. Did you mean 'path'?"),
    (
        store({"BACKEND": REDIS, "OPTIONS": {"urls": "redis://u:hush@h"}}),
        "W109",
        "OPTIONS has 'urls'. Did you mean 'url'?",
    ),
    (
        store({"BACKEND": f"{__name__}.RegionalStore", "OPTIONS": {"path": "/x"}}),
        "W109",
        "missing 1 required keyword-only argument: 'region'",
    ),
    (store({"BACKEND": FILE, "OPTIONS": {"path": 5}}), "W109", "int"),
    (store({"BACKEND": FILE, "LOCATION": "/x"}), "W115", "unknown key 'LOCATION'"),
    (store({"BACKEND": FILE, "OPTIONS": {"path": f"{__file__}/x"}}), "W110", __file__),
    (
        store({"BACKEND": MEMORY, "OPTIONS": {"max_bytes": "1 GB"}}),
        "W109",
        "max_bytes is '1 GB'; it has to be a number",
    ),
    (store({"BACKEND": MEMORY, "OPTIONS": {"max_bytes": True}}), "W109", "max_bytes is True; it has to be a number"),
    (store({"BACKEND": REDIS}), "W109", "needs either url"),
    (
        store({"BACKEND": REDIS, "OPTIONS": {"url": "redis://m", "sentinels": ["h:1"]}}),
        "W109",
        "a list of (host, port)",
    ),
    (store({"BACKEND": REDIS, "OPTIONS": {"url": "redis://m", "sentinels": 5}}), "W109", "a list of (host, port)"),
    (store({"BACKEND": REDIS, "OPTIONS": {"url": 5}}), "W109", "its url is not the URL of a Redis server"),
    (store({"BACKEND": REDIS, "OPTIONS": {"cache": "no"}}), "W109", "the alias of one of CACHES: default"),
    (
        store({"BACKEND": REDIS, "OPTIONS": {"url": "redis://x", "read_timeout": "1"}}),
        "W109",
        "read_timeout is of type str",
    ),
    ({"BLOOM_GUARD": {}}, "W038", "the settings have BLOOM_GUARD, which bloomguard does not read"),
    ({"MIDDLEWARE": []}, "W013", "MIDDLEWARE has no BloomGuardMiddleware"),
    ({"MIDDLEWARE": [GUARD, "django.middleware.common.CommonMiddleware"]}, "W011", "CommonMiddleware after"),
]


def numbered(table):
    """Names for tests: the value may be anything."""
    return [f"{identifier}-{number}" for number, (_, identifier, _) in enumerate(table)]


@pytest.fixture(autouse=True)
def site(fresh, transactional_db, settings):
    """One product, and no other guards."""
    kept, registry._guards = registry._guards, {}
    registry.changed()
    Product.objects.create(pk=7)
    yield
    registry._guards = kept
    registry.changed()
    del registry.refused[:]


@pytest.fixture
def assert_all_works(settings):
    """``assert_all_works()``: nothing stops, and no row is answered 404."""
    return partial(_assert_all_works, settings)


def _assert_all_works(settings):
    others = {
        f"{each.id}" for each in run_checks(databases=["default"]) if not (each.id or "").startswith("bloomguard.")
    }
    settings.SILENCED_SYSTEM_CHECKS = list(others)  # what else would stop `migrate` here
    out = io.StringIO()
    call_command("migrate", "--plan", skip_checks=False, stdout=out, stderr=out)
    for command in (["explain_guard", "/products/8/"], ["guard_routes"], CHECK):
        call_command(*command, stdout=out, stderr=out)
    run_checks(tags=["bloomguard"], include_deployment_checks=True)
    assert Client().get("/products/7/").status_code == 200
    row = Bundle.objects.create()
    Product.objects.filter(pk=row.pk).update(name="x")
    assert Client().get(f"/products/{row.pk}/").status_code == 200
    row.delete()
    assert Client().get(f"/products/{row.pk}/").status_code == 404


def assert_said(identifier, text):
    """A message has the value and the cure, and no message is an error."""
    messages = run_checks(tags=["bloomguard"])
    (found,) = [each for each in messages if each.id == f"bloomguard.{identifier}" and text in each.msg]
    assert found.hint
    assert not any(each.is_serious() for each in messages)


@pytest.mark.parametrize(("attributes", "identifier", "text"), GUARDS, ids=numbered(GUARDS))
def test_a_wrong_guard(attributes, identifier, text, assert_all_works):
    """Each mistake in an option is said, and the site goes on."""
    with registered(Product, **{"name": "mine", **attributes}):
        assert_said(identifier, text)
        assert_all_works()


@pytest.mark.parametrize(("given", "identifier", "text"), SETTINGS, ids=numbered(SETTINGS))
def test_a_wrong_setting(given, identifier, text, settings, assert_all_works):
    """Each mistake in the settings is said, and the site goes on."""
    for name, value in given.items():
        setattr(settings, name, value)
    with registered(Product, name="mine"):
        assert_said(identifier, text)
        assert_all_works()


class Nothing(models.Model):
    class Meta:
        abstract = True
        app_label = "shop"


@pytest.mark.parametrize(
    ("decorate", "text"),
    [
        (register, "@register has no model"),
        (register("shop.Product"), "@register was given 'shop.Product', which is not a model with a table"),
        (register(Nothing), "which is not a model with a table"),
        (register(models.Model), "which is not a model with a table"),
    ],
)
def test_a_guard_that_cannot_be_registered(decorate, text, assert_all_works):
    """The class stays what it is, and guards nothing."""
    lost = type("LostGuard", (Guard,), {"__module__": "tests.shop.guards"})

    assert decorate(lost) is lost
    assert_said("W019", text)
    assert_all_works()
    del lost
    del registry.refused[:]
    gc.collect()  # or other tests hear of the class


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"alive": property(lambda self: Q(deleted=self.nothing))}, "has no attribute 'nothing'"),
        ({"lookup": property(lambda self: 5)}, "making it raised AttributeError"),
        ({"__init__": lambda self, model, other: None}, "missing 1 required positional argument: 'other'"),
    ],
)
def test_a_guard_that_cannot_be_made(attributes, text, assert_all_works):
    """An error of its own properties or methods is said, and its ``guards.py`` is imported all the same."""
    register(Product)(type("BrokenGuard", (Guard,), attributes))

    assert_said("W019", text)
    assert_all_works()
    del registry.refused[:]
    gc.collect()


@isolate_apps("tests.shop")
def test_a_guard_of_a_model_that_a_setting_replaces(assert_all_works, settings):
    """Such as Django's user in a project with its own: it has no table, and no query is for it."""
    settings.SHOP_MODEL = "shop.Product"

    class Swapped(models.Model):
        class Meta:
            app_label, swappable = "shop", "SHOP_MODEL"

    register(Swapped)(type("SwappedGuard", (Guard,), {}))

    assert_said("W019", "given shop.Swapped, which SHOP_MODEL replaces; register shop.Product")
    assert_all_works()
    del registry.refused[:]


def test_a_class_that_is_no_guard(assert_all_works):
    """A forgotten base class."""
    register(Product)(type("BareGuard", (), {}))

    assert_said("W019", "BareGuard is not registered, so it guards nothing: it is not a subclass of Guard")


def test_a_guard_that_is_no_class(assert_all_works):
    """An object has no name of its own."""
    register(Product)(Guard(Product))
    assert_all_works()
    assert_said("W019", "bloomguard.guards.guard.Guard is not registered, so it guards nothing: it is not a subclass")
    assert_all_works()


def test_two_guards_of_one_name(assert_all_works):
    """The second one is not registered."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(registered(Product, name="mine"))
        assert_said("W107", "another guard already has the name 'mine'")
        assert_all_works()


@pytest.mark.parametrize("name", ["fields", "keys", "definition", "alive_fields", "discards"])
def test_an_error_in_one_guard_stops_no_other(name, assert_all_works, clock):
    """Neither the queries and writes of its own table, nor those of others."""

    def fail(self):
        raise RuntimeError("nobody expected it")

    with registered(Product, name="broken") as broken, registered(Article, name="sound", lookup="slug") as sound:
        broken._meta.__class__ = type("BrokenMeta", (GuardMeta,), {name: property(fail)})
        Rebuild(sound, sleep=clock.sleep).run()
        with guarded_lookups():
            Article.objects.create(slug="a")
            assert [Article.objects.filter(slug=slug).exists() for slug in "ab"] == [True, False]
            row = Product.objects.create()
            Product.objects.filter(pk=row.pk).update(name="x")
            assert Product.objects.filter(pk=row.pk, name="x").exists()
            row.delete()

        assert (sound.verdict("a"), sound.verdict("b")) == (Verdict.MAYBE, Verdict.ABSENT)
        assert broken.verdict(7) is Verdict.UNKNOWN
        assert Client().get("/products/7/").status_code == 200


@pytest.mark.parametrize("attributes", REFUSED, ids=map("-".join, REFUSED))
def test_a_rebuild_of_a_wrong_guard_fails(attributes):
    """Only the command that builds a filter fails, with the mistake."""
    with registered(Product, **{"name": "mine", **attributes}), pytest.raises((CommandError, BloomGuardError)):
        call_command("rebuild_filter", stdout=io.StringIO(), stderr=io.StringIO())


@pytest.mark.parametrize("attributes", OF_KEYS, ids=map("-".join, OF_KEYS))
def test_a_mistake_between_two_releases_costs_no_row(attributes, clock):
    """A guard was armed, was released with a mistake, and is corrected: a row written meanwhile is not denied."""
    with registered(Product, name="mine") as right:
        Rebuild(right, sleep=clock.sleep).run()
        assert right.verdict(99) is Verdict.ABSENT
    forget()
    with registered(Product, **{"name": "mine", **attributes}) as wrong:
        assert wrong.verdict(99) is Verdict.UNKNOWN
        assert wrong.filter_existing([99]) == [99]
        assert not wrong._mistakes or wrong.filter_existing([2**70]), "no field says what is out of its range"
        Product.objects.create(pk=99)
    clock.sleep(5)
    with registered(Product, name="mine"):
        assert Client().get("/products/99/").status_code == 200
        assert registry["mine"].verdict(99) is not Verdict.ABSENT


def test_a_guard_is_made_of_any_values():
    """No value of any option stops the import of ``guards.py``, and no query is sent for the message."""
    values = [None, True, 5, 1.5, "", "x", b"x", [], [None], {}, {"a": []}, set(), object(), Q(), Product, len]
    names = [name for name in vars(Guard) if not name.startswith("_") and name in Guard.__annotations__]
    for name in [*names, "applies", "normalize"]:
        for value in values:
            if name != "model":
                assert isinstance(make_guard(Product, **{name: value}).name, str)


@pytest.mark.django_db
def test_settings_without_a_urlconf_stop_nothing(settings):
    """A worker's: it answers no requests, and writes rows."""
    del settings.ROOT_URLCONF
    registry.replan()

    run_checks(databases=["default"])
    for command in (["guard_routes"], ["explain_guard", "/products/1/"], ["suggest_guards"]):
        call_command(*command, stdout=io.StringIO())
