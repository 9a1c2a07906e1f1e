"""Metrics for OpenTelemetry: put ``"bloomguard.contrib.opentelemetry"`` into ``INSTALLED_APPS``."""
