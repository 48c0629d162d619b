# dd reads one byte a thousand times: each read is to be seen. The first failure ends GDB with status 1.
optprobe add vfs_read if $comm == "dd" && count == 1 do count by $comm
optprobe add vfs_read -return if $comm == "dd" && $retval == 1 do latency

# The guest runs during `optprobe run` only, so the workload is started before and waits for it.
shell for try in 1 2 3; do optprobe guest run --name "$GUEST" dd if=/dev/zero of=/dev/null bs=1 count=1000 && break; sleep 1; done >/dev/null 2>&1 &
optprobe run -until-hits 2:1000 -timeout 100

# The report is there also where an assertion fails.
pipe optprobe report -json | cat >report.json
optprobe expect $optprobe_hits(1) == 1000
optprobe expect $optprobe_hits(2) == 1000
optprobe expect $optprobe_missed(2) == 0
