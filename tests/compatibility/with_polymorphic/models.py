from django.db import models
from polymorphic.models import PolymorphicModel


class Project(PolymorphicModel):
    slug = models.SlugField(unique=True)


class ArtProject(Project):
    artist = models.CharField(max_length=50, default="")


class ResearchProject(Project):
    supervisor = models.CharField(max_length=50, default="")
