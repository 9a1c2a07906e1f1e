"""The tenants, in the shared schema."""

from django_tenants.models import DomainMixin, TenantMixin


class Customer(TenantMixin):
    """One tenant."""

    auto_drop_schema = True


class Domain(DomainMixin):
    """The host of a tenant."""
