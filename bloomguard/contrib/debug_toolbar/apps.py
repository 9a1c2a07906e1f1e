"""The Django app configuration of ``bloomguard.contrib.debug_toolbar``."""

from __future__ import annotations

from django.apps import AppConfig


class DebugToolbarConfig(AppConfig):
    """App configuration that provides the panel's template."""

    name = "bloomguard.contrib.debug_toolbar"
    label = "bloomguard_debug_toolbar"
