#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shared GPU memory across checkpoints on a machine with a GPU: the driver alone beside ours, what preflight says, times.
# Needs gcc, python3 with construct (or its directory in PYTHONPATH), libcuda.so.1 of 570 or later; torch if it is there.
# Under eight minutes. Prints all it finds; exit status 1 if something is not as it should be. Never touches multicast.
set -u
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uname -srm
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2>/dev/null || true

src=cuinterpose/src
case $(uname -m) in
x86_64) protection="-fcf-protection" ;;
*) protection="-mbranch-protection=standard -mno-outline-atomics" ;;
esac
flags="-std=gnu11 -O2 -fPIC -fvisibility=hidden -fno-semantic-interposition -Wall -Wextra $protection -shared"
mkdir -p "$work/cuinterpose"
cp cuinterpose/*.py "$work/cuinterpose/"
(cd $src && gcc $flags shim.c names.c loader.c lookup.c dlsym.S -o "$work/cuinterpose/libcuinterpose.so" -nostartfiles \
    "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,nodelete,-soname,libcuinterpose.so,--version-script=shim.map" -ldl) || exit 1
(cd $src && gcc $flags ticket.c frame.c peer.c endpoint.c gate.c ledger.c contexts.c vmm.c watch.c share.c cycle.c inventory.c \
    -o "$work/cuinterpose/libcutrack.so" "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,nodelete,-soname,libcutrack.so" \
    -pthread -ldl) || exit 1
gcc -std=gnu11 -O2 -Wall -Wextra benchmarks/cuinterpose_checkpoint_gpu.c -o "$work/worker" -ldl || exit 1
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$work${PYTHONPATH:+:$PYTHONPATH}"
# construct is pure Python: a copy beside the checkout serves a machine without pip
[ -d "$root/build/python" ] && PYTHONPATH="$PYTHONPATH:$root/build/python"
cp benchmarks/cuinterpose_checkpoint_gpu.py "$work/run.py" # the folder of a script comes first, and there is a cuinterpose.py
cd "$work"
extra=$* # --exports: that part alone
python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || extra="$extra --no-torch"
timeout -k 5 "${LIMIT_S:-460}" python3 "$work/run.py" "$work/worker" \
    "$work/cuinterpose/libcuinterpose.so" $extra
