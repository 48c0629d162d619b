"""The empty disk image that QEMU keeps snapshots of a guest in.

    cluster 0   header             one cluster is 64 KiB
    cluster 1   refcount table     → cluster 2
    cluster 2   refcount block     four clusters in use
    cluster 3   L1 table           empty

QEMU saves a whole machine only to a qcow2 image; written here so that no further program is needed.
"""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["write_image"]

CLUSTER_BITS = 16
CLUSTER = 1 << CLUSTER_BITS
DISK_SIZE = 1 << 20
# magic, version, backing file offset and size, cluster bits, disk size, encryption, L1 entries and offset,
# refcount table offset and clusters, snapshots and their offset
HEADER = struct.Struct(">4sIQIIQIIQQIIQ")


def write_image(path: Path) -> None:
    """Write an empty qcow2 image, version 2; snapshots grow it."""
    header = HEADER.pack(
        b"QFI\xfb", 2, 0, 0, CLUSTER_BITS, DISK_SIZE, 0, 1, 3 * CLUSTER, 1 * CLUSTER, 1, 0, 0
    )
    refcount_table = struct.pack(">Q", 2 * CLUSTER)
    refcount_block = struct.pack(">4H", 1, 1, 1, 1)
    clusters = (header, refcount_table, refcount_block, b"")
    path.write_bytes(b"".join(cluster.ljust(CLUSTER, b"\0") for cluster in clusters))
