from django.db import models
from guardian.models import UserObjectPermissionBase


class Document(models.Model):
    slug = models.SlugField(unique=True)


class Contract(models.Model):
    """Its permissions have a table of their own, with a foreign key."""

    slug = models.SlugField(unique=True)


class ContractUserObjectPermission(UserObjectPermissionBase):
    content_object = models.ForeignKey(Contract, on_delete=models.CASCADE)
