from django.contrib import admin
from import_export.admin import ImportExportModelAdmin

from .models import Book

admin.site.register(Book, ImportExportModelAdmin)
