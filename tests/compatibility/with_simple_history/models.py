from django.db import models
from simple_history.models import HistoricalRecords


class Poll(models.Model):
    slug = models.SlugField(unique=True)
    question = models.CharField(max_length=100, default="")
    history = HistoricalRecords()
