from django.contrib import admin
from reversion.admin import VersionAdmin

from .models import Essay

admin.site.register(Essay, VersionAdmin)
