#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the probe, two processes that share one allocation, torch, and what the shim costs.
# Needs gcc, python3 and libcuda.so.1; under four minutes. Prints all it finds; exit status 1 if something failed.
# Never touches multicast, and allocates nothing but a few megabytes (torch: what its two matrices take).
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
step() { printf '\n== %s\n' "$*"; }
try() { # seconds, command...
    local limit=$1 status=0
    shift
    timeout -k 5 "$limit" "$@" || status=$?
    [ "$status" = 0 ] || { echo "FAILED ($status): $*"; failed=1; }
}

step "machine"
uname -srm
ldd --version | head -1
gcc --version | head -1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true

step "build"
mkdir -p "$work/cuinterpose"
cp cuinterpose/*.py "$work/cuinterpose/"
src=cuinterpose/src
case $(uname -m) in
x86_64) protection="-fcf-protection" ;;
*) protection="-mbranch-protection=standard -mno-outline-atomics" ;;
esac
flags="-std=gnu11 -O2 -fPIC -fvisibility=hidden -fno-semantic-interposition -Wall -Wextra $protection -shared"
gcc $flags $src/shim.c $src/names.c $src/loader.c $src/lookup.c $src/dlsym.S -o "$work/cuinterpose/libcuinterpose.so" -nostartfiles \
    "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,nodelete,-soname,libcuinterpose.so,--version-script=$src/shim.map" -ldl || exit 1
gcc $flags $src/probe.c -o "$work/cuinterpose/libcuprobe.so" -ldl || exit 1
gcc -std=gnu11 -O2 -Wall -Wextra benchmarks/cuinterpose_gpu.c $src/ticket.c $src/frame.c $src/peer.c $src/endpoint.c \
    -o "$work/gpu" -ldl || exit 1
shim=$work/cuinterpose/libcuinterpose.so
cd "$work" # where the package is; a checkout may hold an older build
export PYTHONDONTWRITEBYTECODE=1
cuinterpose() { python3 -m cuinterpose.cli "$@"; }
export -f cuinterpose

step "the resolver-contract probe, with and without the shim"
try 40 bash -c 'cuinterpose conform --libcuda libcuda.so.1'
for runtime in $(python3 - <<'PY'
import glob, site, sys
roots = {*site.getsitepackages(), site.getusersitepackages(), *sys.path}
found = {p for r in roots if r for p in glob.glob(f"{r}/nvidia/**/libcudart.so.1[123]*", recursive=True)}
found |= set(glob.glob("/usr/local/cuda*/lib64/libcudart.so.1[123]"))
print("\n".join(sorted(found)[:2]))
PY
); do
    try 40 bash -c "cuinterpose conform --libcuda libcuda.so.1 --libcudart $runtime | tail -1"
done

step "two processes: a ticket, EXPORT twice, one memory"
try 25 "$work/gpu" share
try 25 env LD_PRELOAD="$shim" "$work/gpu" share

step "overheads: five runs each way, in turns (ns best, worst)"
for round in 1 2 3 4 5; do
    for preload in "" "$shim"; do
        [ -n "$preload" ] && label=shim || label=plain
        LD_PRELOAD=$preload timeout -k 5 15 "$work/gpu" bench | sed "s/^/$round $label\t/" || failed=1
    done
done | tee "$work/bench"
python3 - "$work/bench" <<'PY'
import collections, sys
runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    fields = line.split("\t")
    if len(fields) == 4:
        runs[fields[1], fields[0].split()[1]].append(float(fields[2]))
for name in dict.fromkeys(name for name, _ in runs):
    plain, shim = runs[name, "plain"], runs.get((name, "shim"), [])
    if shim:
        print(f"{name}: plain {min(plain):.1f} shim {min(shim):.1f} ns, difference {min(shim) - min(plain):+.1f}, "
              f"spread of plain runs {max(plain) - min(plain):.1f}")
PY

step "torch, expandable segments"
cat >"$work/torch_part.py" <<'PY'
import ctypes, os, subprocess, sys
import torch
torch.manual_seed(6)
a = torch.randn(1024, 1024, device="cuda"); b = torch.randn(1024, 1024, device="cuda")
c = (a @ b).double().sum().item()
big = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
del big
torch.cuda.synchronize(); torch.cuda.empty_cache()
print(f"torch {torch.__version__} cuda {torch.version.cuda}: {c!r}")
try:
    names = "struct_size abi disabled bound".split() + "by_dlsym by_resolver by_runtime unrecognised".split()
    class Stats(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint32 if i < 4 else ctypes.c_uint64) for i, n in enumerate(names)]
    stats = Stats.in_dll(ctypes.CDLL(None), "cuinterpose_stats")
    print("stats:", " ".join(f"{n}={getattr(stats, n)}" for n in names))
    doctor = subprocess.run([sys.executable, "-m", "cuinterpose.cli", "doctor", str(os.getpid())],
                            capture_output=True, text=True, timeout=60, env={**os.environ, "LD_PRELOAD": ""}, cwd=os.path.dirname(__file__))
    lines = doctor.stdout.splitlines()
    print("\n".join(lines[:24] + (["..."] if len(lines) > 26 else []) + lines[-2:]), doctor.stderr.strip(), f"doctor: exit {doctor.returncode}")
except ValueError:
    print("no shim in this process")
PY
if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    try 60 python3 "$work/torch_part.py"
    try 90 env LD_PRELOAD="$shim" python3 "$work/torch_part.py"
else
    echo "no torch here"
fi

step "done: $([ $failed = 0 ] && echo all passed || echo SOMETHING FAILED)"
exit $failed
