from django.contrib import admin
from simple_history.admin import SimpleHistoryAdmin

from .models import Poll

admin.site.register(Poll, SimpleHistoryAdmin)
