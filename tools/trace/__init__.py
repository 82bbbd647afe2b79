"""nvproxy-trace, declared: a subcommand's ``run`` is in the module of its name."""

from __future__ import annotations

from collections.abc import Sequence

from nvproxy_model.tools.arguments import PROFILE, driver, formats, number
from nvproxy_model.tools.command import Command, Example, OneOf, Program, argument
from nvproxy_model.trace.format import IOCTL_KINDS
from nvproxy_model.trace.judge.groups import GROUPS
from nvproxy_model.trace.logs import NAMES as LOGS
from nvproxy_model.trace.record import CANNOT_SEE

__all__ = ["PROGRAM", "main"]

_FILES = argument(
    "files",
    metavar="FILE",
    nargs="+",
    help="a trace, or a log that import reads: plain, gzip, zstd, bzip2 or xz; several files of one strace -ff;"
    " - for standard input",
)
_KIND = argument(
    "--from",
    dest="log",
    choices=LOGS,
    metavar="KIND",
    help="the file is a log of this kind (default: its lines decide)",
)
_FILE = argument("file", metavar="FILE", help="a trace: plain, gzip, zstd, bzip2 or xz; - for standard input")
_DRIVER = driver("the release to name numbers and read structs by (default: the one that the trace names)")
_JUDGE = driver("the release whose rules judge (default: the one that the trace names)")
_OUTPUT = argument(
    "-o", "--output", metavar="OUT", required=True, help="the trace: gzip or zstd by its ending (.gz, .zst)"
)
_READ = {0: "all of it was read", 2: "could not read all of it"}

PROGRAM = Program(
    "nvproxy-trace",
    "Record what a program asks of the NVIDIA driver, decode it, check it against a policy, compare two runs.",
    "trace",
    (
        Command(
            "record",
            "run a program and write down what it asks of the driver",
            "Runs CMD and records its calls on /dev/nvidia*, and those of the processes that it starts. CMD keeps its own output, "
            "input and exit status.\n\n"
            f"The preloaded recorder sees arguments before and after each call. It cannot see {CANNOT_SEE}. --seccomp sees those "
            "too, but only the arguments before the call and no answers, and each call costs more.",
            (
                Example("nvproxy-trace record -o run.jsonl.zst -- python3 train.py"),
                Example("nvproxy-trace record -o run.jsonl.gz --no-values -- nvidia-smi"),
                Example("nvproxy-trace record -o run.jsonl.zst --seccomp -- ./static-program"),
            ),
            {0: "CMD's own exit status, as a shell gives it", 2: "CMD could not be run, or its own status"},
            (
                _OUTPUT,
                OneOf(
                    (
                        argument(
                            "--values",
                            dest="values",
                            action="store_true",
                            default=True,
                            help="keep the bytes of structs and buffers (default)",
                        ),
                        argument(
                            "--no-values",
                            dest="values",
                            action="store_false",
                            help="keep only numbers, sizes and statuses",
                        ),
                    )
                ),
                argument("--seccomp", action="store_true", help="through seccomp user notification"),
                argument(
                    "--inside", action="store_true", help="this is a sandbox: the trace says that nvproxy answers here"
                ),
                driver("the release of the machine (default: what /proc/driver/nvidia/version says)"),
                argument("-q", "--quiet", action="store_true", help="no summary at the end, only warnings"),
                argument("cmd", metavar="CMD", nargs="+", help="the program and its arguments, after --"),
            ),
        ),
        Command(
            "decode",
            "every call by name, with every field of its struct",
            "Decodes a trace. Fields of the model's structs have roles; other structs come from the recorded facts of the nearest "
            "public release. JSON is written as lines: a head, one object a record, a summary.",
            (
                Example("nvproxy-trace decode run.jsonl.zst"),
                Example("nvproxy-trace decode run.jsonl.zst --kind alloc --name '*CHANNEL*'"),
                Example("nvproxy-trace decode run.jsonl.zst --status 0x56 --json | jq .name"),
            ),
            _READ,
            (
                _FILES,
                _KIND,
                _DRIVER,
                argument(
                    "--kind",
                    action="append",
                    choices=(*IOCTL_KINDS, "open", "mmap", "close", "dup", "fd", "process", "exec"),
                    help="only this kind; may be repeated",
                ),
                argument("--name", metavar="GLOB", help="only calls whose name matches, such as NV2080_CTRL_CMD_GPU_*"),
                argument(
                    "--number", metavar="N", type=number, action="append", help="only this number; may be repeated"
                ),
                argument(
                    "--status", metavar="S", type=number, action="append", help="only this NV status; may be repeated"
                ),
                argument("--tid", metavar="TID", type=int, action="append", help="only this thread; may be repeated"),
                formats(),
            ),
            ("nvproxy-trace/decode/1",),
        ),
        Command(
            "check",
            "does a policy admit this trace, and what would it take",
            "Judges every distinct call of a trace by nvproxy's rules for one driver release and capability set.",
            (
                Example("nvproxy-trace check run.jsonl.zst --driver 580.126.20 --caps compute,utility"),
                Example("nvproxy-trace check run.jsonl.zst --caps compute,utility,profiling --all"),
                Example("nvproxy-trace check run.jsonl.zst --caps compute,utility --all-drivers"),
                Example("nvproxy-trace check runsc.log.boot --driver 580.126.20", "nvproxy's debug log, as it is"),
            ),
            {
                0: "admitted, apart from refusals that are known to be harmless",
                1: "refused by nvproxy",
                2: "could not tell: the file does not hold what decides, was not read whole, or shows no call at all",
            },
            (
                _FILES,
                _KIND,
                _JUDGE,
                argument(
                    "--caps", default="compute,utility", metavar="C", help="driver capabilities (default: %(default)s)"
                ),
                PROFILE,
                argument("--all", action="store_true", help="list what is admitted too"),
                argument("--strict", action="store_true", help="count refusals that are known to be harmless"),
                argument(
                    "--inside",
                    action="store_true",
                    help="the trace was recorded inside a sandbox (newer traces say so themselves)",
                ),
                argument("--all-drivers", action="store_true", help="which releases admit it"),
                formats(),
            ),
            ("nvproxy-trace/check/2",),
            {"groups": dict(GROUPS.items())},
        ),
        Command(
            "compare",
            "two runs of one program: which calls differ",
            "Compares two traces by kind, number and status. Handles, addresses and descriptors differ in every run and are not "
            "compared.",
            (
                Example("nvproxy-trace compare outside.jsonl.zst inside.jsonl.zst"),
                Example("nvproxy-trace compare old.jsonl.zst new.jsonl.zst --no-counts --json"),
            ),
            {
                0: "the same",
                1: "different",
                2: "could not tell: a trace that could not be read whole, or nothing to compare",
            },
            (
                argument("a", metavar="A", help="the first trace"),
                argument("b", metavar="B", help="the second trace"),
                driver("the release to name and read structs by (default: one that the traces name)"),
                argument(
                    "--values",
                    action="store_true",
                    help="also compare the values of fields, apart from handles, descriptors and addresses",
                ),
                argument(
                    "--no-counts",
                    action="store_true",
                    help="the same outcomes in other numbers do not count as a difference",
                ),
                formats(),
            ),
            ("nvproxy-trace/compare/1",),
        ),
        Command(
            "stats",
            "counts, rates, time by kind, the slowest calls",
            "Counts a trace in one pass and flat memory. Quantiles are right to 3 percent.",
            (
                Example("nvproxy-trace stats run.jsonl.zst"),
                Example("nvproxy-trace stats run.jsonl.zst --plot run.png", "needs: pip install 'nvproxy-model[plot]'"),
            ),
            _READ,
            (
                _FILES,
                _KIND,
                driver("the release to name numbers by (default: the one that the trace names)"),
                argument(
                    "--top",
                    type=int,
                    default=10,
                    metavar="N",
                    help="how many slowest calls and numbers (default: %(default)s)",
                ),
                argument("--plot", metavar="FILE.png", help="write a time line"),
                formats(),
            ),
            ("nvproxy-trace/stats/1",),
        ),
        Command(
            "census",
            "numbers per process over many traces, the bypass windows included",
            "Counts numbers per process over all traces of a folder. nvproxy passes two windows of control commands on "
            "unexamined: those with bit 15 (legacy GSS) and those of class 0x2081 (binapi). A command in both goes through the "
            "first.",
            (Example("nvproxy-trace census traces/ --windows"), Example("nvproxy-trace census traces/ --json")),
            {0: "all of them were read", 2: "could not read all of them"},
            (
                argument("dir", metavar="DIR", help="a folder of traces (*.jsonl, .gz, .zst), or one trace"),
                argument("--windows", action="store_true", help="only the bypass windows"),
                formats(),
            ),
            ("nvproxy-trace/census/1",),
        ),
        Command(
            "import",
            "strace output, nvproxy's debug log, gVisor's ioctl sniffer, a recorder's spool",
            "Reads a log as a trace, in whatever wrapping it comes: time stamps, pod names, colours, JSON, quotes, UTF-16. What "
            "its text does not hold is left out, never guessed: strace prints argument bytes only with -v, since 6.11; other "
            "logs of it have no command for RM_CONTROL and no class for RM_ALLOC.",
            (
                Example(
                    "strace -f -v -o strace.txt -e trace=openat,ioctl,close,dup,clone,clone3,fork,vfork nvidia-smi"
                ),
                Example("nvproxy-trace import strace.txt -o log.jsonl"),
                Example("nvproxy-trace import runsc.log.boot -o boot.jsonl.gz"),
                Example("nvproxy-trace import log.4711 log.4712 -o log.jsonl", "strace -ff -ttt: one file a thread"),
                Example(
                    "nvproxy-trace import run.jsonl.zst.spool -o run.jsonl.zst", "a recording whose recorder was killed"
                ),
            ),
            {0: "all of it was read", 2: "could not read all of it"},
            (
                argument(
                    "files",
                    metavar="FILE",
                    nargs="+",
                    help="a log: plain, gzip or zstd; several files of one strace -ff; - for standard input",
                ),
                _OUTPUT,
                argument(
                    "--from",
                    dest="log",
                    choices=(*LOGS, "spool"),
                    metavar="KIND",
                    help="what the log is (default: its lines decide)",
                ),
                driver("the release that answered, if you know it"),
            ),
            module="import_log",
        ),
        Command(
            "scrub",
            "replace GPU UUIDs, serial numbers and addresses",
            "Writes a trace whose GPU and MIG UUIDs, serial numbers, addresses and command lines are replaced, each distinct "
            "value by another one, so that it still decodes, compares and replays. They are found by the fields of public "
            "structs and by the text form of a UUID: a struct without a public layout may hold one in another form, which is "
            "not found.",
            (Example("nvproxy-trace scrub run.jsonl.zst -o clean.jsonl.zst"),),
            _READ,
            (_FILE, _OUTPUT, _DRIVER),
        ),
        Command(
            "replay",
            "the recorded calls through a session whose host answers what was recorded",
            "Runs a trace through a Session with a Host that answers from the recording. A divergence is a call that the policy "
            "admits and whose answer, returned bytes or objects differ from what the program saw.",
            (
                Example("nvproxy-trace replay run.jsonl.zst"),
                Example("nvproxy-trace replay run.jsonl.zst --caps compute,utility --json"),
            ),
            {0: "no divergence", 1: "some", 2: "could not tell"},
            (
                _FILES,
                _KIND,
                _JUDGE,
                argument(
                    "--caps",
                    default="all",
                    metavar="C",
                    help="driver capabilities; all: every one that nvproxy supports (default)",
                ),
                PROFILE,
                formats(),
            ),
            ("nvproxy-trace/replay/1",),
        ),
    ),
    (
        Example("nvproxy-trace record -o run.jsonl.zst -- python3 train.py"),
        Example("nvproxy-trace check run.jsonl.zst --driver 580.126.20 --caps compute,utility"),
        Example("nvproxy-trace decode run.jsonl.zst --kind control --status 0x56"),
        Example("nvproxy-trace compare outside.jsonl.zst inside.jsonl.zst"),
        Example("nvproxy-trace import strace.txt -o log.jsonl"),
    ),
    {0: "admitted, the same, done", 1: "refused or different", 2: "could not tell, or could not read all of the trace"},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return PROGRAM.main(argv)
