"""Figures for Prometheus, as an app: put ``"bloomguard.contrib.prometheus"`` into ``INSTALLED_APPS``."""
