"""What the checks are found by: ``manage.py check --tag bloomguard``."""

from __future__ import annotations

TAG = "bloomguard"
