"""A panel for django-debug-toolbar.

Put ``"bloomguard.contrib.debug_toolbar"`` into ``INSTALLED_APPS`` and
``"bloomguard.contrib.debug_toolbar.panel.VerdictsPanel"`` into ``DEBUG_TOOLBAR_PANELS``.
"""
