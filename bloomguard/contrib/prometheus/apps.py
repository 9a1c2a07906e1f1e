"""The Django app configuration of ``bloomguard.contrib.prometheus``."""

from __future__ import annotations

from django.apps import AppConfig


class PrometheusConfig(AppConfig):
    """App configuration that registers the metrics in ``prometheus_client``'s default registry."""

    name = "bloomguard.contrib.prometheus"
    label = "bloomguard_prometheus"
    verbose_name = "Bloomguard's metrics for Prometheus"

    _is_installed = False

    def ready(self) -> None:
        """Install the metrics, once: a test that overrides ``INSTALLED_APPS`` calls this again."""
        from .metrics import install

        if not PrometheusConfig._is_installed:
            install()
            PrometheusConfig._is_installed = True
