"""nvproxy-differ record: rewrite the recorded facts from a repository's tags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvproxy_model.tools.differ.shared import SAME, add_source, add_subparser, fail, opened

EXAMPLES = """\
  nvproxy-differ record --source ~/open-gpu-kernel-modules
  nvproxy-differ record --source ~/open-gpu-kernel-modules --output facts.json.xz"""


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = add_subparser(
        subparsers,
        "record",
        "rewrite the recorded facts from a repository's tags",
        "Reads every release of a repository and writes what its ABI headers say. The same repository gives the same bytes.",
        EXAMPLES,
    )
    add_source(parser, required=True)
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="where to (default: the shipped file)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Read and write; returns the exit status."""
    import os
    import tempfile

    from nvproxy_model.drivers import facts
    from nvproxy_model.tools.differ.shared import read_releases

    target = args.output or facts.FACTS
    with opened(args) as source:
        versions = list(source.versions)
        if not versions:
            fail(f"{args.source}: no release in it: no tag is a version")
        parents = {version: source.parent(version) for version in versions}
        content = facts.record(read_releases(source, versions, None, args), parents)
    try:
        fd, name = tempfile.mkstemp(prefix=".facts-", dir=target.parent)
        with open(fd, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except OSError as error:
        fail(f"{target}: {error.strerror}")
    print(f"{target}: {len(versions)} releases, {len(content)} bytes")
    return SAME
