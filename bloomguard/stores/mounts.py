"""Which kind of file system a path lies on, as Linux tells, and what that means for a mapped file."""

from __future__ import annotations

import os
import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")

NETWORK = frozenset([
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "ocfs2",
    "gfs2", "virtiofs", "vboxsf", "prl_fs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.rclone", "fuse.goofys", "fuse.mount-s3", "fuse.juicefs", "fuse.davfs",
    "fuse.grpcfuse", "fuse.vmhgfs-fuse",
])  # fmt: skip
OVERLAY = frozenset(["overlay", "aufs", "fuse.fuse-overlayfs"])
MEMORY = frozenset(["tmpfs", "ramfs"])

_ESCAPED = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: str | os.PathLike[str]) -> str:
    """The type of the file system that ``path`` lies on, such as ``"ext4"``; empty where nobody can tell.

    Reads :data:`TABLE` alone, and asks the file system itself for no more than where its links lead.
    """
    try:
        lines = TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        return ""
    place, found, depth = Path(os.path.realpath(path)), "", -1
    for line in lines:
        before, _, after = line.partition(" - ")  # the number of optional fields before the dash varies
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) < 6:
            continue
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # Of two mounts on one point the later one is on top.
        if len(point.parts) >= depth and place.is_relative_to(point):
            found, depth = kind, len(point.parts)
    return found
