"""Figures for OpenTelemetry, as an app: put ``"bloomguard.contrib.opentelemetry"`` into ``INSTALLED_APPS``."""
