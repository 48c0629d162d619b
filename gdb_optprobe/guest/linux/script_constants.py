"""Constants of Linux's headers that scripts take from them: types need no header, macros are in no type information."""

from __future__ import annotations

from collections.abc import Mapping

# include/linux/socket.h, include/linux/sched.h, include/uapi/linux/in.h, include/uapi/asm-generic/errno-base.h
CONSTANTS: Mapping[str, int] = {
    "AF_UNSPEC": 0, "AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17,
    "TASK_RUNNING": 0, "TASK_INTERRUPTIBLE": 1, "TASK_UNINTERRUPTIBLE": 2,
    "IPPROTO_ICMP": 1, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17, "IPPROTO_ICMPV6": 58,
    "EPERM": 1, "ENOENT": 2, "EINTR": 4, "EIO": 5, "EAGAIN": 11, "ENOMEM": 12, "EACCES": 13, "EFAULT": 14,
    "EBUSY": 16, "EEXIST": 17, "ENODEV": 19, "EINVAL": 22, "ENOSPC": 28, "EPIPE": 32,
}  # fmt: skip
_KERNEL = ("linux/", "net/", "asm/", "asm-generic/", "uapi/")
_OTHERS = ("sys/socket.h", "netinet/in.h", "errno.h", "stdint.h", "stddef.h")


def has_header(name: str) -> bool:
    """Return whether what scripts take from a header is known without it."""
    return name.startswith(_KERNEL) or name in _OTHERS
