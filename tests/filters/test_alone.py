"""``bloomguard.filters`` stands alone."""

import subprocess
import sys

ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("django", "redis", "django_redis"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Refuse())
import bloomguard.filters as filters
import pkgutil, importlib
for module in pkgutil.iter_modules(filters.__path__):
    importlib.import_module(f"bloomguard.filters.{module.name}")
assert "numpy" not in sys.modules, "numpy is for bulk work only"
f = filters.BloomFilter(1_000)
f.add(b"a")
assert b"a" in f and b"b" not in f
f.add_many([b"c"])
"""


def test_filters_work_where_django_cannot_be_imported():
    """No Django, no Redis; and numpy is loaded by the first bulk call, not by the import."""
    result = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_every_public_name_is_there():
    from bloomguard import filters

    assert sorted(filters.__all__) == filters.__all__
    assert all(hasattr(filters, name) for name in filters.__all__)
    assert all(getattr(filters, name).__doc__ for name in filters.__all__)
