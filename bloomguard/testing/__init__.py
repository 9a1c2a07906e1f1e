"""For the tests of projects that use bloomguard: filters that follow the test's database, and what to assert.

In a test run guards are cold: everything passes, as on a site before its first ``rebuild_filter``. Where a test is
about the guards, :func:`guards_armed` gives each a filter in memory of the rows that are there, for as long as its
block lasts. From then on it is kept in step as in production, by the same hooks.

* ``django.test``: put :class:`GuardTestMixin` before ``TestCase``.
* pytest: ask for the fixture ``armed_guards``, and for ``db`` or its like.
"""

from .assertions import GuardTestMixin, assert_blocked, assert_passes
from .filters import guards_armed, guards_off

__all__ = ["GuardTestMixin", "assert_blocked", "assert_passes", "guards_armed", "guards_off"]
