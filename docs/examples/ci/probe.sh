#!/bin/sh
# Boot a guest and run reads.gdb in it; leave report.json and console.log. Arguments go to `optprobe guest start`:
#
#     ./probe.sh --kernel arch/x86/boot/bzImage
set -eu

export GUEST="${GUEST:-ci}"
optprobe guest start --name "$GUEST" "$@"
trap 'optprobe guest log --name "$GUEST" >console.log; optprobe guest stop --name "$GUEST"' EXIT
optprobe gdb -nx -batch -ex "target remote $(optprobe guest socket --name "$GUEST")" -x "$(dirname "$0")/reads.gdb"
