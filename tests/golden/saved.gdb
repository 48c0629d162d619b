# Probes of optprobe: `source` this file where `optprobe` is loaded and the guest has booted.
set $limit = 4096
set optprobe optimization off
set optprobe boost off
set optprobe emulation off
set optprobe trap off
set optprobe max-probes 7
set optprobe table-keys 1024
set optprobe ring-records 64
set optprobe string-length 16
set optprobe stack-size 1024
# set optprobe arena code=0xffffffff81000000-0xffffffff81001000 data=0xffffffff81002000-0xffffffff81003000: addresses of that boot
optprobe add vfs_read
optprobe add vfs_write
optprobe disable $optprobe
optprobe add vfs_read -name r if count > $limit do count by ($comm, $cpu), print("%s\n", $comm)
optprobe add *_stext+0x1254 -tier boosted
optprobe add vfs_write -return -maxactive 9 entry if fd > 2 do save n = count if $retval > 0
optprobe add /bin/busybox:main+4 -user -file "/tmp/a b" -pid 3 do count by $pid
optprobe add /bin/busybox:main -user -return do hist($retval)
optprobe add dummy:dummy_xmit -pending
optprobe add vfs_* -glob
# optprobe add vfs_read: its handlers are Python's
optprobe add vfs_read -overwrite do record(count)
optprobe add tracepoint:sched:sched_switch if args->prev_pid > 1
