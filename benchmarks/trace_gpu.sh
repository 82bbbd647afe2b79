#!/bin/bash
# The recorders on a real GPU, bounded to four minutes: `trace_gpu.sh prepare` where there is a compiler and a package index, then
# `trace_gpu.sh` on the machine with the GPU. Records nvidia-smi, a VMM program, torch and a profiler where they are installed, with both
# recorders around the same run; their counts must agree. Small traces go to $OUT where that is set.
set -u
cd "$(dirname "$0")/.." || exit 2
here=build/gpu
python=${PYTHON:-python3}

if [ "${1:-}" = prepare ]; then
	set -e
	mkdir -p "$here"
	"$python" -m pip install -q --target "$here/site" --upgrade --only-binary=:all: --python-version "${GPU_PYTHON:-3.12}" \
		--platform manylinux2014_x86_64 --no-deps construct==2.10.70 pyyaml orjson zstandard
	cc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -shared -pthread \
		-o "$here/librecorder.so" nvproxy_model/trace/record/recorder/*.c -ldl
	du -sh "$here"
	exit 0
fi

export PYTHONPATH="$PWD:$PWD/$here/site"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/librecorder.so" "$work/" || exit 2
fail=0
deadline=$((SECONDS + 230))

trace() { "$python" -c 'import sys
from pathlib import Path
from nvproxy_model.trace.record import preload as r
r.record.__kwdefaults__["recorder"] = Path(sys.argv[1])
from nvproxy_model.tools.trace import main
sys.exit(main(sys.argv[2:]))' "$work/librecorder.so" "$@"; }
export -f trace
export work python

left() { echo $((deadline - SECONDS > 5 ? deadline - SECONDS : 1)); }

# No command takes longer than its own limit or than what is left of the whole.
within() {
	local limit=$1 rest
	shift
	rest=$(left)
	timeout $((limit < rest ? limit : rest)) "$@"
}

count() { "$python" -c 'import sys
from nvproxy_model.trace.reader import Reader
r = Reader(sys.argv[1])
print(sum(rec.k == "ioctl" for rec in r), r.problems.count)' "$1"; }

# NAME SAME-OUTPUT LIMIT COMMAND...: plain, then preloaded, then both recorders around one run.
one() {
	local name=$1 same=$2 limit=$3 plain status
	shift 3
	if [ "$(left)" -lt 20 ]; then
		echo "== $name: no time left, not run"
		return
	fi
	echo "== $name: $*"
	within "$limit" "$@" > "$work/plain.out" 2> "$work/plain.err"
	plain=$?
	within "$limit" bash -c 'trace record -q -o "$0" -- "$@"' "$work/$name.jsonl.zst" "$@" > "$work/rec.out" 2> "$work/rec.err"
	status=$?
	if [ "$plain" != "$status" ]; then
		echo "   FAIL exit status $plain plain, $status recorded"
		fail=1
		tail -n 5 "$work/plain.err" "$work/rec.err"
	fi
	if [ "$same" = same ] && ! cmp -s "$work/plain.out" "$work/rec.out"; then
		echo "   FAIL the output differs"
		diff "$work/plain.out" "$work/rec.out" | head -n 5
		fail=1
	fi
	within "$limit" bash -c 'trace record -q --seccomp -o "$0" -- bash -c "$1" "${@:2}"' "$work/$name-seccomp.jsonl.zst" \
		'trace record -q -o "$0" -- "$@"' "$work/$name-both.jsonl.zst" "$@" > /dev/null 2> "$work/both.err"
	echo "   exit $plain; both recorders around one run: exit $?"
	local preloaded notified
	preloaded=$(count "$work/$name-both.jsonl.zst")
	notified=$(count "$work/$name-seccomp.jsonl.zst")
	echo "   ioctls and problems: preloaded alone $(count "$work/$name.jsonl.zst"), in the common run preloaded $preloaded, notified $notified"
	if [ "$preloaded" != "$notified" ] || [ -z "$preloaded" ]; then
		echo "   FAIL the two recorders disagree"
		fail=1
		tail -n 3 "$work/both.err"
		trace compare "$work/$name-both.jsonl.zst" "$work/$name-seccomp.jsonl.zst" 2>&1 | grep -v status | head -n 8
	fi
	trace replay "$work/$name.jsonl.zst" 2>&1 | tail -n 1 | sed 's/^/   replay: /'
	trace check "$work/$name.jsonl.zst" --caps compute,utility 2>&1 | tail -n 2 | sed 's/^/   check: /'
	trace decode "$work/$name.jsonl.zst" 2>&1 | grep -E '^# (no public|not recorded|truncated)|bytes more than' | sort | uniq -c | sed 's/^/   decode:/'
	if [ -n "${OUT:-}" ]; then
		trace scrub "$work/$name.jsonl.zst" -o "$OUT/$name.jsonl.gz" | sed 's/^/   /'
	fi
}

cat /proc/driver/nvidia/version 2> /dev/null | head -n 1
uname -r
one smi same 20 nvidia-smi -L
one smi-table other 20 nvidia-smi
one vmm same 30 "$python" benchmarks/trace_gpu_program.py 8
if "$python" -c 'import torch' 2> /dev/null; then
	one torch same 60 "$python" -c 'import torch
x = torch.ones(512, 512, device="cuda")
for _ in range(20): x = x @ x / 512
print(float(x[0, 0]))'
fi
first() { ls "$@" 2> /dev/null | head -n 1; }
nsys=$(command -v nsys || first /opt/nvidia/nsight-systems*/bin/nsys /usr/local/cuda*/bin/nsys /opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys)
if [ -n "$nsys" ]; then
	one nsys other 40 "$nsys" profile -o "$work/report" --force-overwrite=true --gpuctxsw=true "$python" benchmarks/trace_gpu_program.py 2
fi
ncu=$(command -v ncu || first /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu)
if [ -n "$ncu" ] && "$python" -c 'import torch' 2> /dev/null; then
	one ncu other 60 "$ncu" --clock-control none -c 1 --section SpeedOfLight "$python" -c 'import torch
x = torch.ones(512, 512, device="cuda")
print(float((x @ x)[0, 0]))'
fi

echo "== start-up, 500 ioctls, alternating runs"
within 60 "$python" - "$work" << 'EOF'
import os, statistics, subprocess, sys, time
from pathlib import Path
from nvproxy_model.trace.record import table
from nvproxy_model.trace.record.mapped import Keeper, keeping
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.record.preload import driver_version, newest
work = Path(sys.argv[1])
numbers = table.pack(table.entries(Catalog(driver_version() or newest())))
times = {"plain": [], "recorded": []}
command = [sys.executable, "benchmarks/trace_gpu_program.py", "4"]
for round in range(10):
    for name in times:
        env = dict(os.environ)
        if name == "recorded":
            env |= {"LD_PRELOAD": str(work / "librecorder.so"), "NVPROXY_TRACE_SPOOL": str(work / "spool")}
        with keeping(Keeper(work / "spool", numbers)):
            start = time.perf_counter()
            if subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode:
                raise SystemExit("   the program failed")
            if round:
                times[name].append(time.perf_counter() - start)
        (work / "spool").unlink()
plain, recorded = (statistics.median(times[name]) for name in ("plain", "recorded"))
print(f"   median of 9: {plain * 1e3:.0f} ms plain, {recorded * 1e3:.0f} ms recorded, {(recorded / plain - 1) * 100:+.1f}% (bound: +6%)")
EOF
[ $? = 0 ] || fail=1
echo "== $([ $fail = 0 ] && echo all as wanted || echo FAILED), $SECONDS s"
exit $fail
