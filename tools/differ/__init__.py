"""nvproxy-differ, declared: a subcommand's ``run`` is in the module of its name."""

from __future__ import annotations

from pathlib import Path

from nvproxy_model.tools.arguments import NO_CACHE, SOURCE, driver, formats, source
from nvproxy_model.tools.command import Argument, Command, Example, Program, argument

__all__ = ["PROGRAM"]

_EXITS = {0: "same", 1: "different", 2: "could not tell"}
_SOURCES = (SOURCE, NO_CACHE)
_SINCE = argument("--since", metavar="V", help="only this release and its descendants")
_BRANCHES = argument(
    "--branch",
    metavar="N",
    action="append",
    default=[],
    help="only releases of this branch, such as 570; may be repeated",
)


def _release(name: str, what: str) -> Argument:
    return argument(name, metavar=name.upper(), help=what)


PROGRAM = Program(
    "nvproxy-differ",
    "Compare releases of NVIDIA's driver with this model, with each other, and with other people's structs.",
    "differ",
    (
        Command(
            "check",
            "compare this model's structs and numbers with releases of the driver",
            "Compares every struct and number of the model with each release of driver_versions.yaml, or with those named. A "
            "release that the table lacks is compared with the model of its nearest listed ancestor in git. A release that is "
            "not in our facts is compared with an independent table where there is one (status agrees, which is less than same), "
            "and is otherwise not checkable.",
            (
                Example("nvproxy-differ check"),
                Example("nvproxy-differ check 570.211.01 --source ~/open-gpu-kernel-modules"),
                Example("nvproxy-differ check --source open-gpu-kernel-modules.tar.xz --format markdown"),
                Example("nvproxy-differ check --unlisted --source ~/open-gpu-kernel-modules", "what is new?"),
            ),
            _EXITS,
            (
                argument(
                    "versions", nargs="*", metavar="VERSION", help="releases (default: all of driver_versions.yaml)"
                ),
                argument("--recorded", action="store_true", help="every recorded release, listed or not"),
                argument(
                    "--unlisted",
                    action="store_true",
                    help="every release of the source that driver_versions.yaml lacks, and its line there",
                ),
                *_SOURCES,
                formats("markdown", "sarif"),
            ),
            ("nvproxy-differ/check/1",),
        ),
        Command(
            "diff",
            "compare two releases of the driver",
            "Compares two releases. The scope says over what: interpreted, the structs that nvproxy reads or rewrites and the "
            "numbers that it uses, with descriptors, pointers and pids that a passed-on struct gains; model (the default), the "
            "structs that it passes on as well; all, every name of the headers. A finding has a kind and a class "
            "(docs/differ.md lists them). Another spelling of the same type is reported but does not count as a difference.",
            (
                Example("nvproxy-differ diff 570.195.03 570.211.01"),
                Example("nvproxy-differ diff 580.105.08 590.44.01 --all --json"),
                Example("nvproxy-differ diff 580.126.18 580.126.20 --source ~/open-gpu-kernel-modules"),
            ),
            _EXITS,
            (
                _release("base", "the release to start from"),
                _release("next", "the release to compare with it"),
                *_SOURCES,
                argument(
                    "--scope",
                    choices=("interpreted", "model", "all"),
                    default="model",
                    help="what is compared (default: model)",
                ),
                argument("--all", dest="scope", action="store_const", const="all", help="short for --scope all"),
                formats("markdown", "sarif"),
            ),
            ("nvproxy-differ/diff/2",),
        ),
        Command(
            "history",
            "follow a struct, field, constant or number over the releases",
            "Shows the first release of each change against the release that it descends from, and the states side by side. A "
            "number below 0x1000 is looked up among the names that the model uses, a larger one among all names.",
            (
                Example("nvproxy-differ history NV_CHANNEL_ALLOC_PARAMS"),
                Example("nvproxy-differ history NV00FD_ALLOCATION_PARAMETERS.pageSize --since 570.86.15"),
                Example("nvproxy-differ history 0x20801358 --branch 575.51.02"),
                Example("nvproxy-differ history NVOS64_PARAMETERS --source ~/open-gpu-kernel-modules --json"),
            ),
            {0: "found", 2: "could not tell: no release has the name"},
            (
                argument(
                    "names", nargs="+", metavar="NAME", help="STRUCT, STRUCT.field.path, CONSTANT, or a number (0x...)"
                ),
                *_SOURCES,
                _SINCE,
                argument(
                    "--branch", metavar="BRANCH", help="a release with its ancestors, or all releases named BRANCH.*"
                ),
                formats(),
            ),
            ("nvproxy-differ/history/1",),
        ),
        Command(
            "layout",
            "show a struct's offsets, sizes, holes and roles, or declare it in C",
            "Shows one struct of one release. The roles are this model's, where it defines the struct, and those of the curated "
            "list. The C declaration is written from sizes and offsets; it needs no other header, and asserts them.",
            (
                Example("nvproxy-differ layout NV_EVENT_BUFFER_ALLOC_PARAMETERS"),
                Example("nvproxy-differ layout NVOS64_PARAMETERS --driver 535.104.05 --format c > nvos64.h"),
                Example("nvproxy-differ layout NvKmsAllocDeviceParams --driver 575.51.02 --json"),
            ),
            {0: "shown", 2: "could not tell: no such struct or release"},
            (
                _release("name", "the struct"),
                driver("a release (default: the newest of the source)"),
                *_SOURCES,
                formats("c"),
                argument("--c", dest="format", action="store_const", const="c", help="short for --format c"),
            ),
            ("nvproxy-differ/layout/1",),
        ),
        Command(
            "audit",
            "list the fields that carry an fd, a pointer, a pid, a host address, a client or a GPU's identity",
            "Lists every field that can carry an fd, a pointer, a pid or a host address, the evidence for each (its role, "
            "its type, the curated list with the driver function that consumes it, the driver's own list of embedded "
            "copies, its name) and what the model does with it. Fails when an admitted struct has one that nobody "
            "classified, or an fd or a pointer that passes untranslated.",
            (
                Example("nvproxy-differ audit"),
                Example("nvproxy-differ audit --driver 580.126.20 --json"),
                Example("nvproxy-differ audit --driver 595.45.04 --all"),
                Example("nvproxy-differ audit --driver 610.57.04 --privilege"),
            ),
            _EXITS,
            (
                driver("one release (default: every release of the table)"),
                *_SOURCES,
                argument(
                    "--all", action="store_true", help="every struct of the headers, not only those in the tables"
                ),
                argument(
                    "--privilege",
                    action="store_true",
                    help="instead: rows that need an administrator, and what any user may call that has no row",
                ),
                formats(),
            ),
            ("nvproxy-differ/audit/1", "nvproxy-differ/privilege/1"),
        ),
        Command(
            "coverage",
            "list the classes of a chip, and which of them have no row",
            "From the driver's own lists of classes by chip (they say which chip lacks a class from 580.65.06 on): the classes of "
            "one chip, or of every chip in numbers, that any user may allocate, and which of them the tables lack.",
            (
                Example("nvproxy-differ coverage"),
                Example("nvproxy-differ coverage --chip GB100"),
                Example("nvproxy-differ coverage --chip AD102 --driver 580.65.06 --json"),
            ),
            {0: "every class has a row", 1: "some class has none", 2: "could not tell"},
            (
                argument("--chip", metavar="CHIP", help="a chip, such as GB100"),
                driver(help="a release (default: the newest that is recorded and listed)"),
                *_SOURCES,
                formats(),
            ),
            ("nvproxy-differ/coverage/1",),
        ),
        Command(
            "place",
            "find a new release's parent, and the rows and fields that need a since=",
            "Finds the nearest ancestor in driver_versions.yaml by git ancestry, compares the model there with the release, and "
            "prints the release's line, and the members and rows that differ, ready to paste.",
            (
                Example("nvproxy-differ place 570.211.01"),
                Example("nvproxy-differ place 595.45.04 --source ~/open-gpu-kernel-modules"),
            ),
            _EXITS,
            (_release("version", "the release to place"), *_SOURCES, formats()),
            ("nvproxy-differ/place/1",),
        ),
        Command(
            "compat",
            "yes or no: is the ABI of two releases the same for the model?",
            "Answers whether a sandbox that knows release A may run release B as A. It may if nothing that nvproxy interprets "
            "differs but for the spelling of types and new names, and if no struct that it passes on gains a descriptor, a "
            "pointer or a pid. Other differences of passed-on structs are mentioned and do not decide.",
            (
                Example("nvproxy-differ compat 570.195.03 570.211.01"),
                Example("nvproxy-differ compat 535.161.07 535.161.08 --all"),
            ),
            {0: "yes", 1: "no", 2: "could not tell"},
            (
                _release("a", "the release that the sandbox knows"),
                _release("b", "the release that the host runs"),
                *_SOURCES,
                argument("--all", action="store_true", help="decide by every struct and constant of the headers"),
                formats(),
            ),
            ("nvproxy-differ/compat/1",),
        ),
        Command(
            "gvisor",
            "compare a gVisor checkout's structs and tables with the drivers, or with the model",
            "Reads pkg/abi/nvgpu and pkg/sentry/devices/nvproxy/version.go (no Go toolchain) and checks every row of every driver "
            "version: numbers, names, sizes, offsets, types, union members, pointers and fds in structs that are forwarded as "
            "bytes, capabilities that change from one version to the next. What cannot be read is listed, and the exit status "
            "is then 2.",
            (
                Example("nvproxy-differ gvisor ~/src/gvisor"),
                Example("nvproxy-differ gvisor ~/src/gvisor --rev release-20240826.0 --json"),
                Example("nvproxy-differ gvisor ~/src/gvisor --source ~/src/open-gpu-kernel-modules"),
                Example("nvproxy-differ gvisor ~/src/gvisor --against model"),
                Example("nvproxy-differ gvisor ~/src/gvisor --add 595.45.04", "what a pull request for it needs"),
                Example("nvproxy-differ gvisor ~/src/gvisor --format sarif > nvproxy.sarif"),
            ),
            _EXITS,
            (
                argument("path", metavar="PATH", help="a gVisor checkout, or a git repository of it (bare or not)"),
                argument(
                    "--rev",
                    metavar="REV",
                    help="a commit, branch or tag of the repository (default: the files, else HEAD)",
                ),
                argument(
                    "--against", choices=("drivers", "model"), default="drivers", help="with what (default: drivers)"
                ),
                argument(
                    "--add",
                    metavar="V",
                    help="print what the checkout needs for driver V: Go types, registrations, the description",
                ),
                argument(
                    "--known",
                    metavar="FILE",
                    help="findings that are known, with a reason each (YAML); they do not count",
                ),
                argument("--notes", action="store_true", help="list notes too: worth knowing, but not a difference"),
                *_SOURCES,
                formats("markdown", "sarif"),
            ),
            ("nvproxy-differ/gvisor/1", "nvproxy-differ/gvisor-add/1"),
        ),
        Command(
            "pin",
            "check the sizes, offsets and constants that another project relies on",
            "Checks a file of struct sizes, field offsets and constants (YAML; NVKMS structs too) against every release, and shows "
            "which releases break it, and which first on each branch. --init writes such a file.",
            (
                Example("nvproxy-differ pin --init NV_MEMORY_ALLOCATION_PARAMS NvKmsAllocDeviceParams > nvidia.yaml"),
                Example("nvproxy-differ pin --init NVOS64_PARAMETERS --driver 570.86.15 > nvidia.yaml"),
                Example("nvproxy-differ pin nvidia.yaml"),
                Example("nvproxy-differ pin nvidia.yaml --since 535.54.03 --branch 570 --branch 580 --json"),
            ),
            _EXITS,
            (
                argument(
                    "names", nargs="+", metavar="FILE", help="the pins, or - for standard input; with --init: names"
                ),
                argument(
                    "--init",
                    action="store_true",
                    help="write a file for these structs and constants to standard output",
                ),
                driver("with --init: the release to take the values from (default: the newest)"),
                _SINCE,
                _BRANCHES,
                *_SOURCES,
                argument("--quiet", "-q", action="store_true", help="only what is broken or unknown, and the verdict"),
                formats("markdown", "sarif"),
            ),
            ("nvproxy-differ/pin/1",),
        ),
        Command(
            "report",
            "write a page with the history of many structs as a heat map",
            "Writes one self-contained HTML page (under 2 MB, no network): a heat map of structs over releases, every layout "
            "beside the one that it came from, a search by struct, field, command, class or release, any two releases compared, "
            "the first breaking release of each struct, and all findings. What is searched for and selected is in the page's "
            "address. With SOURCE_DATE_EPOCH set, the page is the same byte for byte each time. A file name that ends in .svg "
            "gives the heat map alone, as a picture.",
            (
                Example("nvproxy-differ report -o abi.html"),
                Example("nvproxy-differ report -o uvm.html 'UVM_*' NVOS64_PARAMETERS --since 535.54.03"),
                Example("nvproxy-differ report -o abi.html --source ~/open-gpu-kernel-modules"),
                Example("nvproxy-differ report -o heat-map.svg"),
            ),
            {0: "written", 2: "could not read or write"},
            (
                argument(
                    "names",
                    nargs="*",
                    metavar="NAME",
                    help="structs, or patterns such as 'UVM_*' (default: the model's)",
                ),
                argument("-o", "--output", metavar="FILE", required=True, help="the file to write, .html or .svg"),
                _SINCE,
                _BRANCHES,
                *_SOURCES,
            ),
        ),
        Command(
            "record",
            "record what releases say, so that other commands need no source",
            "With --add, adds releases to a file of your own, which every command reads beside the shipped one "
            "($NVPROXY_FACTS, by default ~/.local/share/nvproxy-model/facts.zlib). Name a commit for a release that has "
            "no tag; its version.mk must say the same version. Without --add, reads every release of the source and rewrites "
            "the shipped file. No tag's signature is verified. The same source gives the same bytes.",
            (
                Example("nvproxy-differ record --add 580.211.01 --source ~/open-gpu-kernel-modules"),
                Example("nvproxy-differ record --add 610.57.04=e4a5faa2567f --source ~/open-gpu-kernel-modules"),
                Example("nvproxy-differ record --source ~/open-gpu-kernel-modules --output facts.zlib"),
            ),
            {0: "written", 2: "could not read or write"},
            (
                source(required=True),
                NO_CACHE,
                argument(
                    "--add",
                    action="append",
                    default=[],
                    metavar="V[=COMMIT]",
                    help="a release to add to your own file; may be repeated",
                ),
                argument("--output", "-o", type=Path, metavar="FILE", help="write there instead"),
            ),
        ),
    ),
    (
        Example("nvproxy-differ check", "the model against every recorded release"),
        Example("nvproxy-differ check --source ~/open-gpu-kernel-modules"),
        Example("nvproxy-differ compat 570.195.03 570.211.01", "may one stand in for the other?"),
        Example("nvproxy-differ diff 580.105.08 590.44.01 --all"),
        Example("nvproxy-differ history NV_CHANNEL_ALLOC_PARAMS"),
        Example("nvproxy-differ layout NVOS64_PARAMETERS --driver 580.126.20 --format c"),
    ),
    _EXITS,
)
