from django.db import models
from parler.managers import TranslatableManager
from parler.models import TranslatableModel, TranslatedFields


class Recipe(TranslatableModel):
    number = models.IntegerField(unique=True)
    translations = TranslatedFields(
        title=models.CharField(max_length=100, default=""),
        slug=models.SlugField(),
        meta={"unique_together": [("language_code", "slug")]},
    )
    objects = TranslatableManager()
