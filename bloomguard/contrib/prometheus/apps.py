"""What Django is told of ``bloomguard.contrib.prometheus``."""

from __future__ import annotations

from django.apps import AppConfig


class PrometheusConfig(AppConfig):
    """Registers the metrics in ``prometheus_client``'s own registry."""

    name = "bloomguard.contrib.prometheus"
    label = "bloomguard_prometheus"
    verbose_name = "Bloomguard's metrics for Prometheus"

    def ready(self) -> None:
        from .metrics import install

        install()
