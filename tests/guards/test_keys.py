"""Keys: values that the database holds for equal give the same bytes."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, models, transaction
from django.db.models.functions import Lower
from gazetteer.models import City, Listing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bloomguard.filters.bulk import one_by_one
from bloomguard.guards.fields import kind_of
from bloomguard.guards.keys import KeyMaker, OutOfRange, Unkeyable
from tests.shop.models import Article, Bundle, Diary, Order, Place, Price, Product
from tests.support import database

BIG = 2**63 - 1
UUID = uuid.UUID("ABCDEF01-2345-6789-ABCD-EF0123456789")

in_the_database = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


def key_of(model: type[models.Model], name: str, value: Any, **options: Any) -> bytes:
    field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    return KeyMaker([field], **options).key(value)


def finds(model: type[models.Model], name: str, asked: Any) -> bool:
    """Whether the database finds the one row there is; a value that it refuses finds nothing."""
    try:
        with transaction.atomic(using=model.objects.db):
            return model.objects.filter(**{name: asked}).exists()
    except (ValueError, ValidationError, ArithmeticError, TypeError, DatabaseError):
        return False


def assert_the_law(model: type[models.Model], name: str, stored: Any, asked: Any) -> None:
    """Save a row, ask for it: where the database finds it, the key of what was asked is the row's, or there is none."""
    model.objects.all().delete()
    row = model.objects.create(**{name: stored})
    row.refresh_from_db()
    if not finds(model, name, asked):
        return
    try:
        asked_key = key_of(model, name, asked)
    except Unkeyable:
        return  # the request passes
    assert asked_key == key_of(model, name, getattr(row, name))


def dressed_integers(number: int) -> st.SearchStrategy[Any]:
    """The same number as a URL may write it, and some that are nearly it."""
    other_digits = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    text = str(number)
    return st.sampled_from(
        [
            number,
            text,
            f"00{text}" if number >= 0 else text,
            f"+{text}",
            f" {text}",
            f"{text}\n",
            f"\u2003{text}",
            text.translate(other_digits),
            f"{text[:1]}_{text[1:]}",
            float(number),
            number + 0.5,
            Decimal(number),
            f"{text}.0",
            number + 1,
            number + 2**64,
            True,
        ]
    )


@pytest.mark.django_db(databases="__all__")
class TestTheLawInTheDatabase:
    """What the database finds has the row's key."""

    @database.without_mariadb  # whose next automatic number comes after the greatest
    @in_the_database
    @given(data=st.data(), number=st.integers(1, BIG - 1) | st.integers(1, 200))
    def test_integers(self, each_database, data, number):
        """However an integer is written, if the database finds the row, its key is the row's."""
        assert_the_law(Product, "pk", number, data.draw(dressed_integers(number)))

    @database.without_mariadb  # which takes UUIDs of known versions only
    @in_the_database
    @given(data=st.data(), value=st.uuids())
    def test_uuids(self, each_database, data, value):
        """However a UUID is written, if the database finds the row, its key is the row's."""
        texts = [str(value), str(value).upper(), value.hex, f"{{{value}}}", value.urn, value, value.int, f" {value}"]
        assert_the_law(Order, "pk", value, data.draw(st.sampled_from(texts)))

    @in_the_database
    @given(data=st.data(), cents=st.integers(-(10**10) + 1, 10**10 - 1) | st.integers(-300, 300))
    def test_decimals(self, each_database, data, cents):
        """However a decimal is written, if the database finds the row, its key is the row's."""
        value = Decimal(cents).scaleb(-2)
        near = [f"{value}", f"{value}0", f"{value}1", f"{value}4999", f"+{value}", f"{value:E}", value.normalize()]
        near += [f"{value.normalize():f}", float(value), f" {value}", -value, f"{value}0000000000001"]
        assert_the_law(Price, "amount", value, data.draw(st.sampled_from(near)))

    @in_the_database
    @given(data=st.data(), day=st.dates())
    def test_dates(self, each_database, data, day):
        """However a date is written, if the database finds the row, its key is the row's."""
        near = [day, str(day), f"{day.year}-{day.month}-{day.day}", day.strftime("%Y%m%d"), f" {day}"]
        near += [datetime.datetime(day.year, day.month, day.day, 23, 59, 59), day.isoformat().replace("-", "/")]
        assert_the_law(Diary, "day", day, data.draw(st.sampled_from(near)))

    @in_the_database
    @given(data=st.data(), text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
    def test_texts(self, each_database, data, text):
        """Whatever spelling of a text the database takes for equal has its key."""
        near = [text, text.upper(), text.casefold(), f"{text} ", f" {text}", f"{text}\0", text.strip()]
        assert_the_law(Article, "slug", text, data.draw(st.sampled_from(near) | st.text(max_size=5)))


@pytest.mark.parametrize(
    "same",
    [
        (7, "7", "007", "+7", " 7", "7 ", "٧", "７", 7.0, Decimal(7)),
        (10, "10", "1_0", "0_1_0", "1٠"),
        (-7, "-7", " -7", "-007"),
        (0, "0", "-0", "00", False),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
    ids=str,
)
def test_one_integer_has_one_key_of_8_bytes(same):
    """Every way of writing an integer that the field converts to it gives the same 8 bytes."""
    keys = {key_of(Product, "pk", value) for value in same}

    assert len(keys) == 1
    assert {len(key) for key in keys} == {8}


@pytest.mark.parametrize(
    "text",
    ["ABCDEF01-2345-6789-ABCD-EF0123456789", "abcdef0123456789abcdef0123456789", f"{{{UUID}}}", UUID.urn, UUID.int],
)
def test_one_uuid_has_one_key_of_16_bytes(text):
    """Upper case, hex, braces, a URN and the integer are the same UUID."""
    assert key_of(Order, "pk", text) == key_of(Order, "pk", UUID) == UUID.bytes


@pytest.mark.parametrize(
    "same",
    [
        ("1", "1.0", "1.00", "01", "+1", "1E0", "1E+0", "10E-1", 1, 1.0, Decimal("1.0")),
        ("10", "1E+1", "10.00", "1e1", "100e-1"),
        ("0", "-0", "0.00", "-0.0", "0E+9", "0E-99", 0),
        ("-1.5", "-1.50", "-15e-1"),
        ("1e30", "1" + "0" * 30),
    ],
    ids=str,
)
def test_one_decimal_has_one_key(same):
    """Trailing zeros, exponents and the sign of zero make no other decimal."""
    assert len({key_of(Price, "amount", value) for value in same}) == 1


def test_a_column_without_a_precision_takes_decimals_of_any_length():
    """Django 6.1 lets PostgreSQL and SQLite store them. Those that SQLite may take for another one have no key."""
    key = KeyMaker([models.DecimalField()]).key
    assert key("1.50") == key("1.5") != key("1.50001")
    for number in ("1e-400", "1e400", "1.2345678901234567"):
        with pytest.raises(Unkeyable):
            key(number)


@pytest.mark.parametrize("text", ["2024-02-29", "2024-2-29"])
def test_one_date_has_one_key(text):
    """A date has the same 8 bytes as text and as a date."""
    assert key_of(Diary, "day", text) == key_of(Diary, "day", datetime.date(2024, 2, 29))
    assert len(key_of(Diary, "day", text)) == 8


def test_different_dates_have_different_keys():
    """No two of the days around have one key."""
    first = datetime.date(1999, 12, 1)

    assert len({key_of(Diary, "day", first + datetime.timedelta(days)) for days in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (Product, "pk", "seven"),
        (Product, "pk", ""),
        (Product, "pk", "7.0"),
        (Product, "pk", "7\0"),
        (Product, "pk", "²"),
        (Product, "pk", "9" * 5000),  # Python converts no more than 4,300 digits, nor does the field
        (Product, "pk", float("nan")),
        (Product, "pk", float("inf")),
        (Product, "pk", None),
        (Product, "pk", models.F("pk")),
        (Product, "pk", object()),
        (Order, "pk", "no uuid"),
        (Order, "pk", "abcdef01-2345-6789-abcd-ef012345678"),
        (Order, "pk", -1),
        (Order, "pk", 2**128),
        (Order, "pk", None),
        (Article, "slug", None),
        (Article, "slug", "\ud800"),
        (Article, "slug", models.F("slug")),
        (Article, "slug", Lower("slug")),
        (Article, "slug", Article(slug="a")),  # as in ``get(parent=row)``, for a foreign key to a text
        (Price, "amount", "NaN"),
        (Price, "amount", "sNaN"),
        (Price, "amount", "Infinity"),
        (Price, "amount", "-inf"),
        (Price, "amount", "1.001"),  # SQLite rounds what it is asked for to the column's places
        (Price, "amount", "0.0000000001"),
        (Price, "amount", "1" * 16),
        (Price, "amount", "1e" + "9" * 30),
        (Price, "amount", "one"),
        (Price, "amount", None),
        (Diary, "day", "2023-02-29"),
        (Diary, "day", "29.02.2024"),
        (Diary, "day", ""),
        (Diary, "day", None),
    ],
)
def test_what_does_not_convert_has_no_key(model, name, value):
    """A value that the field does not convert, or compares as nobody can foretell, is unkeyable: the request passes."""
    with pytest.raises(Unkeyable):
        key_of(model, name, value)


@pytest.mark.parametrize("value", [2**64, 2**70, str(2**70), -(2**63) - 1, -(2**70)])
def test_an_integer_that_no_column_holds_is_out_of_range(value):
    """Integers of more than 64 bits are in no table."""
    with pytest.raises(OutOfRange):
        key_of(Product, "pk", value)


@pytest.mark.parametrize(
    "text", ["", "a\0b", "ü", "u\u0308", "\u202eabc", "\ufeff", "x" * 1_000_000, "日本", "'\"\\;--"]
)
def test_text_keeps_every_character(text):
    """A text's key is its UTF-8, NUL and length included."""
    assert key_of(Article, "slug", text).decode() == text


def test_normalize_maps_both_sides():
    """Text goes through the guard's ``normalize`` after the field's own conversion; other kinds do not."""
    assert key_of(Article, "slug", "Straße", normalize=str.casefold) == b"strasse"
    assert key_of(Article, "slug", 5, normalize=str.casefold) == b"5"
    assert key_of(Product, "pk", "7", normalize=str.casefold) == key_of(Product, "pk", 7)


pairs = st.lists(st.text("ab\0\x01", max_size=3) | st.text(max_size=4), min_size=2, max_size=2)


@given(pairs, pairs)
@example(["ab", "c"], ["a", "bc"])
@example(["", "a"], ["a", ""])
def test_no_two_tuples_run_together(one, other):
    """Tuples of texts have one key only if they are the same tuple."""
    keys = KeyMaker([Place._meta.get_field("country"), Place._meta.get_field("slug")])

    def surrogates(values):
        return any("\ud800" <= character <= "\udfff" for value in values for character in value)

    if not surrogates(one) and not surrogates(other):
        assert (keys.key(one) == keys.key(other)) == (one == other)


def test_a_composite_takes_a_sequence_or_a_mapping():
    """Several fields' values come in the fields' order, or by name in any."""
    keys = KeyMaker([Place._meta.get_field("country"), Place._meta.get_field("slug")])

    assert keys.key(("DE", "ulm")) == keys.key(["DE", "ulm"]) == keys.key({"slug": "ulm", "country": "DE"})
    assert keys.key(("DE", "ulm")) != keys.key(("ulm", "DE"))
    assert keys.width is None


@pytest.mark.parametrize(
    "value",
    ["DE", b"DE", bytearray(b"DE"), memoryview(b"DE"), {"DE", "ulm"}, frozenset(["D", "E"]), iter(["D", "E"]),
     {"country": "DE", "slug": "ulm"}.keys(), 5, None, (each for each in "DE")],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_composite_takes_nothing_without_an_order_of_parts(value):
    """A text is one value, not several; a set has another order in each process."""
    keys = KeyMaker([Place._meta.get_field("country"), Place._meta.get_field("slug")])

    with pytest.raises(Unkeyable):
        keys.key(value)


def test_a_composite_of_another_length_is_refused():
    """Too few or too many values make no key."""
    keys = KeyMaker([Place._meta.get_field("country"), Place._meta.get_field("slug")])

    with pytest.raises(ValueError, match="zip"):
        keys.key(["DE"])


def test_a_foreign_key_has_the_key_of_what_it_points_at():
    """Foreign keys and one-to-one primary keys are keyed as the column that they point at."""
    assert kind_of(Listing._meta.get_field("city")) == "integer"
    assert key_of(Listing, "city", "007") == key_of(City, "pk", 7)
    assert key_of(Bundle, "pk", "+7") == key_of(Product, "pk", 7)


@pytest.mark.parametrize("odd", [[], ["77"], [True], [7.0], [Decimal(7)], [2**64 - 1], [-1, BIG, -BIG - 1]], ids=str)
def test_many_values_have_the_keys_that_they_have_alone(odd):
    """Many integers come as an array; where one of them is something else, or fits no array, as their keys."""
    for maker in (KeyMaker([Product._meta.pk]), KeyMaker([Listing._meta.get_field("city")])):
        values = [*range(40), *odd]

        assert list(one_by_one(maker.many(values))) == list(map(maker.key, values))
        with pytest.raises(Unkeyable):
            maker.many([*values, None])


def test_widths():
    """Kinds of fixed width say so, and their keys have it."""
    widths = {
        model: KeyMaker([model._meta.get_field(name)]).width
        for model, name in [(Product, "id"), (Order, "id"), (Diary, "day"), (Article, "slug"), (Price, "amount")]
    }

    assert widths == {Product: 8, Order: 16, Diary: 8, Article: None, Price: None}


@pytest.mark.parametrize(
    "field",
    [
        models.BooleanField(),
        models.FloatField(),
        models.DateTimeField(),
        models.TimeField(),
        models.DurationField(),
        models.BinaryField(),
        models.JSONField(),
        models.FileField(),
        models.GenericIPAddressField(),
    ],
    ids=lambda field: type(field).__name__,
)
def test_unsupported_fields_are_refused(field):
    """A field of a kind whose equality nobody vouches for cannot be a key."""
    field.set_attributes_from_name("it")

    assert kind_of(field) is None
    with pytest.raises(TypeError, match=f"{type(field).__name__}, which cannot be a key"):
        KeyMaker([field])


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (models.AutoField(primary_key=True), "integer"),
        (models.SmallIntegerField(), "integer"),
        (models.PositiveBigIntegerField(), "integer"),
        (models.SlugField(), "text"),
        (models.EmailField(), "text"),
        (models.URLField(), "text"),
        (models.TextField(), "text"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_kinds_of_fields(field, kind):
    """Fields that Django derives from integer and text fields are of their kind."""
    assert kind_of(field) == kind
