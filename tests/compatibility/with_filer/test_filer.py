"""django-filer and easy-thumbnails: files and pictures in folders, and rows that a page makes as it is read."""

from __future__ import annotations

from io import BytesIO

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import include, path, reverse
from easy_thumbnails.files import get_thumbnailer
from easy_thumbnails.models import Source, Thumbnail
from filer.models import File, Folder, Image
from PIL import Image as Picture

from bloomguard import registry
from bloomguard.testing import assert_blocked
from tests.compatibility.rules import Page, keys_of
from tests.support.guarding import urlconf

pytestmark = pytest.mark.django_db(transaction=True)


def upload(name, content=None):
    return SimpleUploadedFile(name, content or name.encode())


def picture(name="new.png", colour="red"):
    content = BytesIO()
    Picture.new("RGB", (8, 8), colour).save(content, "PNG")
    return SimpleUploadedFile(name, content.getvalue(), content_type="image/png")


def file(name):
    return File.objects.get(original_filename=name)


def thumbnail(row, size=4):
    return get_thumbnailer(row.file).get_thumbnail({"size": (size, size)})


@pytest.fixture
def site(rules, settings):
    """Two folders, one in the other, with a text and a picture in each."""
    settings.ROOT_URLCONF = urlconf(
        path("filer/", include("filer.urls")),
        path("files/<int:pk>/", Page.as_view(model=File)),
        path("images/<int:pk>/", Page.as_view(model=Image)),
    )
    outer = Folder.objects.create(name="outer")
    for n, folder in enumerate([outer, Folder.objects.create(name="inner", parent=outer)]):
        File.objects.create(original_filename=f"text-{n}.txt", file=upload(f"text-{n}.txt"), folder=folder)
        colour = ("green", "blue")[n]
        Image.objects.create(original_filename=f"{n}.png", file=picture(f"{n}.png", colour), folder=folder)
    thumbnail(file("0.png"))
    rules.rebuild()
    return rules


def uploads_a_file():
    File.objects.create(original_filename="new.txt", file=upload("new.txt"))


def uploads_a_picture():
    Image.objects.create(original_filename="new.png", file=picture())


def replaces_a_file():
    """Its digest is another one then."""
    row = file("text-0.txt")
    row.file = upload("text-0.txt", b"other")
    row.save()


def moves_to_another_folder():
    row = file("text-0.txt")
    row.folder = Folder.objects.get(name="inner")
    row.save()


def hides_a_file():
    """It goes to the private storage."""
    row = file("text-0.txt")
    row.is_public = False
    row.save()


def deletes_a_file():
    file("text-0.txt").delete()


def deletes_a_picture():
    file("0.png").delete()


def deletes_files_by_a_queryset():
    File.objects.filter(folder__name="inner").delete()


def deletes_a_folder():
    Folder.objects.get(name="outer").delete()


def is_rolled_back():
    with transaction.atomic():
        uploads_a_picture()
        deletes_a_folder()
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(uploads_a_file, uploads_a_picture, replaces_a_file, moves_to_another_folder, hides_a_file),
        *(deletes_a_file, deletes_a_picture, deletes_files_by_a_queryset, deletes_a_folder, is_rolled_back),
    ],
)
def test_what_files_and_folders_write_is_followed(write, site):
    with site.follow("filer_file"):
        write()


def renames_a_folder():
    Folder.objects.filter(name="inner").update(name="other")


def moves_a_folder():
    row = Folder.objects.get(name="inner")
    row.parent = Folder.objects.create(name="new")
    row.save()


@pytest.mark.parametrize("write", [renames_a_folder, moves_a_folder])
def test_what_the_tree_of_folders_writes_is_followed(write, site):
    with site.follow("filer_folder"):
        write()


@pytest.mark.parametrize("make", [upload, picture])
def test_what_the_admin_uploads_is_followed(make, site, staff):
    folder = Folder.objects.get(name="inner")
    address = reverse("admin:filer-ajax_upload", args=[folder.pk])
    with site.follow("filer_file"):
        response = site.client.post(address, {"file": make("new.png" if make is picture else "new.txt")})
        assert response.status_code == 200, response.content

    assert file(response.json()["label"]).folder == folder


def test_a_page_may_make_the_rows_that_it_does_not_find(site, settings):
    """A thumbnail is made while a page is read: what the guard denies exists a moment later, and is found."""

    def page(request, pk):
        return HttpResponse(thumbnail(get_object_or_404(Image, pk=pk), int(request.GET["size"])).url)

    settings.ROOT_URLCONF = urlconf(path("images/<int:pk>/", page))
    address = f"/images/{file('1.png').pk}/"
    Source.objects.all().delete()  # with the thumbnails
    with site.follow("easy_thumbnails_source", "easy_thumbnails_thumbnail"):
        pages = [site.client.get(address, {"size": size}) for size in (4, 4, 6)]

    assert [each.status_code for each in pages] == [200, 200, 200]
    assert pages[0].content == pages[1].content
    assert (Source.objects.count(), Thumbnail.objects.count()) == (1, 2)


def test_files_are_looked_up(site):
    """The address that filer itself gives to a file leads on to it."""
    site.look_up("file", File.objects)
    site.look_up("file", File.objects.non_polymorphic())
    site.look_up("file-by-digest", File.objects)
    site.look_up("image", Image.objects)
    site.look_up("folder", Folder.objects)
    site.look_up("thumbnail-source", Source.objects)
    site.look_up("thumbnail", Thumbnail.objects)
    site.visit("file", "/files/%s/")
    site.visit("image", "/images/%s/")
    for key in keys_of(registry["file"]):
        row = File.objects.get(pk=key)
        assert site.client.get(row.canonical_url)["Location"] == row.url
    assert_blocked(site.client, f"/filer/canonical/1/{site.missing(registry['file'])}/")
