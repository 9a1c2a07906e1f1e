"""The tag of all checks, for ``manage.py check --tag bloomguard``."""

from __future__ import annotations

TAG = "bloomguard"
