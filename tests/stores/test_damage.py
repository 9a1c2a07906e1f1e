"""A damaged filter, seen by its guard: every request passes, one warning says why, and a rebuild mends it."""

from __future__ import annotations

import logging
import os

import pytest

from bloomguard.guards import registry
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import version_0_1


def truncated(path, data):
    path.write_bytes(data[: len(data) // 2])


def without_its_last_byte(path, data):
    path.write_bytes(data[:-1])


def empty(path, data):
    path.write_bytes(b"")


def foreign(path, data):
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(len(data) - 8))


def zeroed(path, data):
    path.write_bytes(bytes(len(data)))


def written_by_0_1(path, data):
    path.write_bytes(version_0_1.bloom_filter())


def linked(path, data):
    path.with_suffix(".elsewhere").write_bytes(data)
    path.unlink()
    path.symlink_to(path.with_suffix(".elsewhere"))


def writable_by_the_group(path, data):
    path.chmod(0o660)


def removed(path, data):
    path.unlink()


def a_folder(path, data):
    path.unlink()
    path.mkdir()


def flipped(what, at, bit=0):
    def flip(path, data):
        data = bytearray(data)
        data[at] ^= 1 << bit
        path.write_bytes(data)

    flip.__name__ = f"flipped_in_{what}"
    return flip


#: Offsets of the header's fields, and of the trailer's from the end, as the codec has them.
FLIPS = [
    flipped("magic", 0),
    flipped("tag", 8),
    flipped("version", 17),
    flipped("kind", 19),
    flipped("width", 21, 3),
    flipped("parameters", 23),
    flipped("shard", 27),
    flipped("shards", 31, 1),
    flipped("key_id", 39),
    flipped("capacity", 47),
    flipped("error_rate", 48),
    flipped("body_bytes", 63, 3),
    flipped("first_parameter", 71),
    flipped("body", -100, 5),
    flipped("checksum", -16),
    flipped("dirty", -9, 3),
    flipped("last_tag", -1, 1),
]
DAMAGES = [
    truncated, without_its_last_byte, empty, foreign, zeroed, written_by_0_1, linked, writable_by_the_group, removed,
    a_folder, *FLIPS,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_filter_passes_with_one_warning_and_is_mended(damage, build, clock, caplog):
    """A filter that was damaged while nobody had it open says UNKNOWN of everything, warns once, and a rebuild mends
    it."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 300))
    report = build("product")
    guard = registry["product"]
    path = stores["default"].path / "product" / f"{report.generation}.filter"
    damage(path, path.read_bytes())
    forget()
    caplog.clear()

    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        found = []
        for number in range(400):
            found.append(guard.verdict(number))
            clock.now += 0.01
        added = guard._runtime.active_filter.add([guard._meta.keys.key(301)])

    assert found == [Verdict.UNKNOWN] * 400
    assert not added
    assert len(caplog.records) == 1
    assert "rebuild_filter" in caplog.text

    build("product")
    clock.now += 1

    assert [guard.verdict(number) for number in (1, 299, 4_000)] == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]


def test_a_filter_that_comes_back_is_used_again(build, clock):
    """A generation that could not be opened for want of a permission is tried again some seconds later."""
    Product.objects.create(pk=1)
    report = build("product")
    folder = stores["default"].path / "product"
    (folder / f"{report.generation}.filter").rename(folder / "aside")
    os.symlink("aside", folder / f"{report.generation}.filter")
    forget()
    guard = registry["product"]
    assert guard.verdict(50_000) == Verdict.UNKNOWN

    (folder / "aside").rename(folder / f"{report.generation}.filter")
    clock.now += 9
    still = guard.verdict(50_000)
    clock.now += 1

    assert still == Verdict.UNKNOWN
    assert guard.verdict(50_000) == Verdict.ABSENT
