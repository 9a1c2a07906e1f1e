"""django-tenants: the state rows are in the shared schema, not in one for each tenant."""

from __future__ import annotations

import pytest

from bloomguard.checks.databases import check_tenant_apps


@pytest.mark.parametrize("app", ["bloomguard", "bloomguard.apps.BloomGuardConfig"])
def test_state_rows_in_each_schema_are_reported(settings, app):
    settings.TENANT_APPS = ["shop", app]

    [message] = list(check_tenant_apps(None))

    assert message.id == "bloomguard.W139"
    assert "SHARED_APPS" in message.hint


@pytest.mark.parametrize("apps", [[], ["shop"], ["bloomguard.contrib.prometheus", "bloomguards"]])
def test_other_apps_may_be_in_each_schema(settings, apps):
    settings.TENANT_APPS = apps

    assert list(check_tenant_apps(None)) == []
