"""nvproxy-policy, declared: a subcommand's ``run`` is in the module of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nvproxy_model.naming import TABLES
from nvproxy_model.tools.arguments import ALLOW_UNSUPPORTED, CAPS, PENDING, PROFILE, driver, formats, release, table
from nvproxy_model.tools.command import Command, Example, OneOf, Program, argument

__all__ = ["PROGRAM", "main"]

_DRIVER = driver("a release, or host for this machine's (default: latest, the newest supported one)", "latest")
_VERSION = argument(
    "version",
    type=release,
    metavar="VERSION",
    help="a release, latest or host; also one that nvproxy does not support",
)
_UNKNOWN = "could not tell: an unknown release or capability"

PROGRAM = Program(
    "nvproxy-policy",
    "Which calls gVisor's nvproxy admits for a driver release, why, and what it translates.",
    "policy",
    (
        Command(
            "explain",
            "what becomes of one call, and why",
            "Takes a number (0x20801231, 545264177), a request as strace prints it (0xc020462a, _IOC(...), _IOWR(...)) or one of "
            "NVIDIA's symbols: an escape, a UVM command, a control command, a class, or the struct of one. A line of strace or of "
            "nvproxy's log is taken as it is. A number that several tables have is explained for each, unless --kind picks "
            "one. What is not a call is named for what it is.",
            (
                Example("nvproxy-policy explain 0x20801231 --caps compute,utility,profiling"),
                Example("nvproxy-policy explain '_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, 0x30)'"),
                Example("nvproxy-policy explain NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION --driver 550.90.12"),
                Example("nvproxy-policy explain 0x41 --kind alloc --json"),
                Example("nvproxy-policy explain 'nvproxy: unknown uvm ioctl 55 = 0x37'"),
            ),
            {
                0: "admitted, as far as the number decides; of several readings, at least one",
                1: "refused",
                2: "not a call, or not known what is meant",
            },
            (
                argument("what", metavar="NUMBER|NAME", help="a number, a request or a symbol"),
                argument(
                    "--kind",
                    type=table,
                    choices=TABLES,
                    help="the table, where several have the number; fe stands for frontend",
                ),
                _DRIVER,
                CAPS,
                PROFILE,
                ALLOW_UNSUPPORTED,
                PENDING,
                formats("csv", "markdown"),
            ),
            ("nvproxy-policy/explain/1",),
        ),
        Command(
            "table",
            "every row of a release's four tables",
            "Lists the numbers that nvproxy knows at a release, with the capabilities that admit them, their structs and how they "
            "are handled. With --diff: what changed from the first release to the second. --format html is a page for reviewers "
            "(at most 2 MB, no network): the fields of every struct with their roles, who may call what on the host, and on which "
            "chips, with a search and a choice of capabilities.",
            (
                Example("nvproxy-policy table 580.126.20 --caps video"),
                Example("nvproxy-policy table 570.195.03 --diff 580.126.20"),
                Example("nvproxy-policy table 580.126.20 --format html > policy.html"),
            ),
            {0: "listed, or the same", 1: "different", 2: _UNKNOWN},
            (
                _VERSION,
                argument("--caps", metavar="C", help="only what these admit (default: every row)"),
                argument("--diff", metavar="OTHER", help="a second release"),
                formats("csv", "markdown", "html"),
            ),
            ("nvproxy-policy/table/1", "nvproxy-policy/table-diff/1"),
        ),
        Command(
            "bundle",
            "the policy as one JSON document, for a proxy in another language",
            "Prints all that decides a call: rows, capabilities, sizes, what each field is with its offset and width, fd kinds, "
            "restores, dependencies, windows, statuses, what handlers do. It is the same for the same package, byte for byte. With "
            "--all, rows are shared by the releases where they are equal. docs/bundle.md has the algorithm that a proxy follows, "
            "and what it must keep beside it: objects, map contexts, pinned pages.",
            (
                Example("nvproxy-policy bundle > latest.json"),
                Example("nvproxy-policy bundle --driver 580.126.20 > nvproxy-580.126.20.json"),
                Example("nvproxy-policy bundle --all > nvproxy.json"),
            ),
            {0: "printed", 2: _UNKNOWN},
            (
                OneOf(
                    (
                        driver(
                            "a release, or host for this machine's; also one that nvproxy does not support (default: latest)",
                            "latest",
                        ),
                        argument("--all", action="store_true", help="every release of driver_versions.yaml"),
                    )
                ),
                formats(),
            ),
            ("nvproxy-policy/bundle/1",),
        ),
        Command(
            "conform",
            "replay recorded calls against the model",
            "Replays a file of recorded calls in order against sessions whose host answers as the recorded one did, and compares "
            "results, guest memory, what the host saw, and the objects. Nothing of the host's may remain in guest memory.",
            (
                Example("nvproxy-policy conform tests/data/nvproxy_vectors.json.xz"),
                Example("nvproxy-policy conform vectors.json --json"),
            ),
            {0: "all passed", 1: "some failed", 2: "could not tell: not a file of recorded calls"},
            (argument("file", metavar="FILE", type=Path, help="JSON, or JSON in .xz"), formats()),
            ("nvproxy-policy/conform/1",),
        ),
        Command(
            "seccomp",
            "the host-side allow list of ioctl requests",
            "Lists every request that a session can make to the host's driver under these capabilities. One list serves every "
            "release, as nvproxy's filter does: where a struct changed size any size is allowed, and the release's own size is "
            "given beside it.",
            (
                Example("nvproxy-policy seccomp 580.126.20"),
                Example("nvproxy-policy seccomp latest --caps all,profiling,rdma --json"),
            ),
            {0: "listed", 2: _UNKNOWN},
            (_VERSION, CAPS, PROFILE, formats("oci")),
            ("nvproxy-policy/seccomp/1",),
        ),
        Command(
            "audit",
            "which fields of the calls that a capability set opens carry fds, pointers, pids or addresses",
            "Lists, for every call that these capabilities admit, each field that can carry a descriptor, a pointer, a process "
            "number or an address of the host, the evidence for it, and what the model does with it. The first lines count the "
            "values of the host that can reach the guest.",
            (
                Example("nvproxy-policy audit --caps compute,utility"),
                Example("nvproxy-policy audit --driver 580.126.20 --caps all,profiling --format html > audit.html"),
                Example("nvproxy-policy audit --format csv | grep ,pid,"),
            ),
            {0: "listed", 2: _UNKNOWN},
            (_DRIVER, CAPS, PROFILE, ALLOW_UNSUPPORTED, formats("csv", "markdown", "html")),
            ("nvproxy-policy/audit/1",),
        ),
        Command(
            "drivers",
            "which driver releases nvproxy knows, and which one an unlisted driver equals",
            "Lists the releases: the parent of each, whether nvproxy supports it, for which architectures its installer's checksum "
            "is known, whether its headers are recorded, and which one this machine has. With VERSION: whether nvproxy runs it, "
            "or which supported release has the same tables and layouts, and runsc's flag for that. With --installer: whether "
            "a file has the checksum that nvproxy pins.",
            (
                Example("nvproxy-policy drivers"),
                Example("nvproxy-policy drivers host"),
                Example("nvproxy-policy drivers 570.211.01"),
                Example("nvproxy-policy drivers --installer NVIDIA-Linux-x86_64-580.126.20.run"),
            ),
            {0: "listed, or yes", 1: "no", 2: "could not tell"},
            (
                argument(
                    "version", nargs="?", type=release, metavar="VERSION", help="one release, listed or not, or host"
                ),
                argument("--installer", metavar="FILE", help="an installer, to check against the pinned checksums"),
                formats("csv", "markdown"),
            ),
            ("nvproxy-policy/drivers/1",),
        ),
        Command(
            "restorable",
            "what a checkpoint of a traced program could not bring back",
            "Runs a trace through a session, and lists the objects that nvproxy could not allocate again on a restore, with the "
            "lines between which they lived. nvproxy refuses to save a sandbox while one of them lives.",
            (
                Example("nvproxy-policy restorable run.jsonl.zst"),
                Example("nvproxy-policy restorable run.jsonl.zst --format csv"),
            ),
            {
                0: "every object could be brought back",
                1: "some could not",
                2: "could not tell: the trace was not read whole",
            },
            (
                argument("file", metavar="TRACE", help="a trace: plain, gzip or zstd; - for standard input"),
                driver("the release whose rules hold, or host (default: the one that the trace names)"),
                formats("csv", "markdown"),
            ),
            ("nvproxy-policy/restorable/1",),
        ),
        Command(
            "caps",
            "what a list of driver capabilities means",
            "Reads a list as runsc does: its names, the flags for nvidia-container-cli, and what nvproxy supports.",
            (Example("nvproxy-policy caps compute,utility,profiling"), Example("nvproxy-policy caps all")),
            {0: "all of it can be granted", 1: "nvproxy does not support some of it", 2: "not a list of capabilities"},
            (
                argument(
                    "list",
                    metavar="LIST",
                    help="comma-separated names; 'all' is what a container may have; may be empty",
                ),
                formats(),
            ),
            ("nvproxy-policy/caps/1",),
        ),
        Command(
            "run",
            "run a program under nvproxy's rules, without gVisor",
            "Runs CMD as it is and decides every driver call that it or its children make as nvproxy would. A refused call gets "
            "nvproxy's answer; an admitted one is performed here, from a copy of its bytes, with descriptors translated, and its "
            "result is written back. A few calls bind to the process that makes them: they are decided, then run in the program. "
            "Device nodes that nvproxy does not expose are not there. At the end: what was refused and what would admit it, the "
            "smallest capability set, what a checkpoint could not bring back.\n\n"
            "It needs an NVIDIA driver, Linux 5.19 and access to one's own children: no privilege, in Docker --cap-add SYS_PTRACE. "
            "Setuid programs run as their caller, unless the caller is privileged. It is a compatibility tool, not a sandbox: see "
            "docs/threat-model.md.",
            (
                Example("nvproxy-policy run -- python3 train.py"),
                Example("nvproxy-policy run --caps compute,utility,profiling --report run.md -- nsys profile ./app"),
                Example("nvproxy-policy run --strict --observe --driver 570.195.03 -- ./app"),
                Example("nvproxy-policy run --record run.jsonl.zst -- nvidia-smi"),
            ),
            {
                0: "and every other status: the program's own, 128 + N for signal N",
                1: "in place of 0 with --strict, or with --fail-fast: a call was refused that is not known as harmless",
                125: "could not run it: a mistake, no driver, or no right to watch",
                126: "CMD cannot be executed",
                127: "CMD is not there",
            },
            (
                driver(
                    "whose rules: those of the machine's driver, or of a release with the same layouts (default: host)"
                ),
                CAPS,
                PROFILE,
                ALLOW_UNSUPPORTED,
                argument(
                    "--windows",
                    metavar="W",
                    default="allow",
                    help="controls that nvproxy passes unexamined: allow, deny, or the numbers to allow (default: allow)",
                ),
                argument(
                    "--expose",
                    metavar="NODE",
                    action="append",
                    default=[],
                    help="show a device node that nvproxy hides, such as /dev/nvidia-uvm-tools; may be repeated",
                ),
                argument(
                    "--record", metavar="FILE", type=Path, help="write a trace: gzip or zstd by its ending (.gz, .zst)"
                ),
                argument("--report", metavar="FILE", type=Path, help="write the report: Markdown for .md, else JSON"),
                OneOf(
                    (
                        argument("--strict", action="store_true", help="exit with 1 in place of 0 after a refusal"),
                        argument("--fail-fast", action="store_true", help="end the program at its first refusal"),
                    )
                ),
                argument("--observe", action="store_true", help="let everything happen; report what would be refused"),
                argument(
                    "--verify", action="store_true", help="after each free, ask the driver about the objects left"
                ),
                argument("--verbose", action="store_true", help="report each refusal when it happens"),
                argument("-q", "--quiet", action="store_true", help="print nothing at the end"),
                argument("cmd", metavar="CMD", nargs="+", help="the program and its arguments, after --"),
            ),
            ("nvproxy-policy/run/1",),
            failure=125,
        ),
    ),
    (
        Example("nvproxy-policy explain 0xc020462a", "a request as strace prints it"),
        Example("nvproxy-policy explain NV_EVENT_BUFFER --caps compute,utility,profiling"),
        Example("nvproxy-policy explain '_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x4e, 0x38)' --driver 570.195.03"),
        Example("nvproxy-policy table 580.126.20 --diff 590.48.01"),
        Example("nvproxy-policy seccomp 580.126.20 --caps all --json"),
        Example("nvproxy-policy conform vectors.json"),
        Example("nvproxy-policy run --caps compute,utility -- python3 train.py"),
    ),
    {0: "admitted, the same, passed", 1: "refused, different, failed", 2: "could not tell"},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return PROGRAM.main(argv)
