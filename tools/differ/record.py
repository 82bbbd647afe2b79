"""nvproxy-differ record: rewrite the recorded facts from a repository's tags."""

from __future__ import annotations

import argparse

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import SAME, opened


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
