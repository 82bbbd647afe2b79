"""Arguments that several subcommands have, declared once."""

from __future__ import annotations

import argparse

from nvproxy_model import caps as capabilities
from nvproxy_model.caps import PROFILES
from nvproxy_model.ioctl import parse_request
from nvproxy_model.tools.command import Argument, OneOf, argument

__all__ = [
    "ALLOW_UNSUPPORTED",
    "CAPS",
    "NO_CACHE",
    "PENDING",
    "PROFILE",
    "SOURCE",
    "driver",
    "formats",
    "number",
    "release",
    "source",
    "table",
]

CAPS = argument(
    "--caps",
    metavar="C",
    default=str(capabilities.DEFAULT),
    help="as in NVIDIA_DRIVER_CAPABILITIES, and the ones that only the sandbox knows (default: %(default)s)",
)
PROFILE = argument(
    "--profile",
    choices=PROFILES,
    default=PROFILES[0],
    help="gvisor's own rules, or stricter ones (default: %(default)s)",
)
ALLOW_UNSUPPORTED = argument(
    "--allow-unsupported",
    action="store_true",
    help="answer for a release that is known but that nvproxy does not support",
)
PENDING = argument(
    "--pending",
    action="store_true",
    help="admit the rows that were seen in gVisor and that may not be merged",
)
NO_CACHE = argument("--no-cache", action="store_true", help="parse anew, and leave the cache alone")


def release(text: str) -> str:
    """A release's name: ``latest`` is the newest that nvproxy supports, ``host`` the one that this machine has loaded."""
    from nvproxy_model import versions

    if text == "latest":
        return versions.load().latest.name
    if text == "host":
        loaded = versions.host()
        if loaded is None:
            raise argparse.ArgumentTypeError(
                "host: this machine has no NVIDIA driver loaded (/proc/driver/nvidia/version)"
            )
        return loaded
    return text


def driver(help: str, default: str | None = None) -> Argument:
    """``--driver``. A string is a default as if it had been given."""
    return argument("--driver", metavar="V", type=release, default=default, help=help)


def source(*, required: bool = False) -> Argument:
    """``--source``."""
    return argument(
        "--source",
        metavar="SRC",
        required=required,
        help="a git repository (releases are its tags), a directory (one tree, or one folder per version) or a tar archive"
        + ("" if required else " (default: the recorded facts)"),
    )


SOURCE = source()


def formats(*more: str) -> OneOf:
    """``--format`` and its short form ``--json``: text, JSON and what else the subcommand can write."""
    names = ("text", "json", *more)
    form = argument(
        "--format", dest="format", choices=names, default="text", metavar="F", help="how to answer (default: text)"
    )
    return OneOf(
        (form, argument("--json", dest="format", action="store_const", const="json", help="short for --format json"))
    )


def table(text: str) -> str:
    """The table of that name; a trace calls the frontend ``fe``."""
    return "frontend" if text == "fe" else text


def number(text: str) -> int:
    """``0x20800301``, ``545260289`` or ``_IOC(...)``: a number is taken in the form in which it is written elsewhere."""
    value = parse_request(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: want 0x20800301, 545260289 or _IOC(...)")
    return value
