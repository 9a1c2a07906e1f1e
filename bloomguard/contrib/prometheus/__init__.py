"""Metrics for Prometheus: put ``"bloomguard.contrib.prometheus"`` into ``INSTALLED_APPS``."""
