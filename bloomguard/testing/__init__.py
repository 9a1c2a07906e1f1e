"""Helpers for the tests of projects: filters that follow the test's database, and assertions.

In a test run guards are cold: everything passes, as on a site before its first ``rebuild_filter``. To test guards, use
:func:`guards_armed`: inside its block each guard has a filter in memory, built from the rows that exist. Writes update
it through the same hooks as in production.

* ``django.test``: put :class:`GuardTestMixin` before ``TestCase``.
* pytest: request the fixture ``armed_guards``, which enables the database too.
"""

from .assertions import GuardTestMixin, assert_blocked, assert_passes
from .filters import guards_armed, guards_off

__all__ = ["GuardTestMixin", "assert_blocked", "assert_passes", "guards_armed", "guards_off"]
