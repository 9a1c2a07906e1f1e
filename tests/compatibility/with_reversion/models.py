import reversion
from django.db import models


@reversion.register(follow=["remarks"])
class Essay(models.Model):
    slug = models.SlugField(unique=True)
    text = models.TextField(default="")


@reversion.register()
class Remark(models.Model):
    essay = models.ForeignKey(Essay, models.CASCADE, related_name="remarks")
    number = models.IntegerField()
