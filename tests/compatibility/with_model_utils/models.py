from typing import ClassVar

from django.db import models
from model_utils import Choices, FieldTracker
from model_utils.fields import UrlsafeTokenField
from model_utils.managers import InheritanceManager, JoinQueryset
from model_utils.models import SoftDeletableModel, StatusModel, TimeStampedModel, UUIDModel


class Memo(SoftDeletableModel, StatusModel, TimeStampedModel, UUIDModel):
    """Deleted softly, with a status, a UUID and a token."""

    STATUS = Choices("draft", "published")
    slug = models.SlugField()
    token = UrlsafeTokenField(unique=True, max_length=32)
    tracker = FieldTracker()


class Venue(models.Model):
    name = models.CharField(max_length=50)
    objects: ClassVar[models.Manager] = InheritanceManager()
    joining: ClassVar[models.Manager] = JoinQueryset.as_manager()


class Theatre(Venue):
    seats = models.IntegerField(default=100)
