"""The Django app configuration of ``bloomguard.contrib.opentelemetry``."""

from __future__ import annotations

from django.apps import AppConfig


class OpenTelemetryConfig(AppConfig):
    """App configuration that creates the instruments, with the meter provider that the project sets."""

    name = "bloomguard.contrib.opentelemetry"
    label = "bloomguard_opentelemetry"
    verbose_name = "Bloomguard's metrics for OpenTelemetry"

    def ready(self) -> None:
        from .metrics import install

        install()
