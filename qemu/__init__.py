"""Guests to probe: fetching their kernels, making their initramfs, booting them, talking to them.

packages   what the host needs from Debian
debian     Debian packages of any architecture, fetched and unpacked without root
kernels    a stock kernel by package name, from the cache or the archive
initramfs  busybox and our init, as the file QEMU hands to the kernel
machines   how QEMU is called for one architecture
guest      a booted guest: run a command, read the log, reset, stop
micro      bare-metal guests built from the sources beside this file
"""
