"""A site with django-tenants: a schema for each tenant."""

from .settings import *  # noqa: F403
from .settings import MIDDLEWARE, given

SCOPE = given.get("scope", "schema")
DATABASES = {"default": {**given["postgresql"], "ENGINE": "django_tenants.postgresql_backend"}}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
SHARED_APPS = ["django_tenants", "django.contrib.contenttypes", "bloomguard", "tests.scopes.customers"]
TENANT_APPS = ["tests.scopes.wares"]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
TENANT_MODEL = "customers.Customer"
TENANT_DOMAIN_MODEL = "customers.Domain"
TENANT_LIMIT_SET_CALLS = given.get("limited", False)
MIDDLEWARE = ["django_tenants.middleware.main.TenantMainMiddleware", *MIDDLEWARE]
