from django.contrib import admin

from .models import Entry, Note

admin.site.register([Entry, Note])
