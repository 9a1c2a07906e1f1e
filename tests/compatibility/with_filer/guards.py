from easy_thumbnails.models import Source, Thumbnail
from filer.models import File, Folder, Image

from bloomguard import Guard, register


@register(File)
class FileGuard(Guard): ...


@register(File)
class FileByDigestGuard(Guard):
    lookup = "sha1"
    filter = "cuckoo"


@register(Image)
class ImageGuard(Guard):
    filter = "cuckoo"


@register(Folder)
class FolderGuard(Guard):
    lookup = ("parent", "name")
    filter = "cuckoo"


@register(Source)
class ThumbnailSourceGuard(Guard):
    lookup = ("storage_hash", "name")
    filter = "cuckoo"


@register(Thumbnail)
class ThumbnailGuard(Guard):
    lookup = ("storage_hash", "name", "source")
    filter = "cuckoo"
