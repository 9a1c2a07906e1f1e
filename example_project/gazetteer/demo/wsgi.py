"""The WSGI application of the servers that `manage.py demo` starts."""

from config.settings_demo import MODE
from django.core.wsgi import get_wsgi_application

from bloomguard.wsgi import Application, shield

application: Application = get_wsgi_application()

if MODE == "door":
    application = shield(application)

from gazetteer.demo.query_counter import counted  # noqa: E402  # its models need the apps

application = counted(application)
