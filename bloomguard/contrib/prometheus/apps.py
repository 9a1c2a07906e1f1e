"""The Django app configuration of ``bloomguard.contrib.prometheus``."""

from __future__ import annotations

from django.apps import AppConfig


class PrometheusConfig(AppConfig):
    """App configuration that registers the metrics in ``prometheus_client``'s default registry."""

    name = "bloomguard.contrib.prometheus"
    label = "bloomguard_prometheus"
    verbose_name = "Bloomguard's metrics for Prometheus"

    def ready(self) -> None:
        from .metrics import install

        install()
