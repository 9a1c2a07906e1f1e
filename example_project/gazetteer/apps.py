from django.apps import AppConfig


class GazetteerConfig(AppConfig):
    name = "gazetteer"
