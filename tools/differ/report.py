"""nvproxy-differ report: one self-contained page with the history of many structs, or a picture of it."""

from __future__ import annotations

import argparse
import fnmatch
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvproxy_model.errors import NvproxyError
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.pin import ancestry, chosen
from nvproxy_model.tools.differ.shared import SAME, opened, read_releases
from nvproxy_model.tools.output import versions

if TYPE_CHECKING:
    from nvproxy_model.drivers.release import Wanted
    from nvproxy_model.drivers.render.heatmap import HeatMap
    from nvproxy_model.drivers.render.html import Origin


def run(args: argparse.Namespace) -> int:
    """Write the file; returns the exit status. Raises NvproxyError for what cannot be read or written."""
    output = Path(args.output)
    if output.suffix not in (".html", ".svg"):
        fail(f"{args.output}: -o wants a name that ends in .html or .svg")
    grid = _written(output, args)
    changing = sum(row.changes for row in grid.rows)
    checked = sum(len(run.releases) for run in grid.runs if run.checked)
    size = output.stat().st_size / 1e6
    print(f"wrote {output} ({size:.1f} MB): {len(grid.rows)} structs over {checked} releases in {len(grid.runs)} runs")
    print(f"{changing} structs change, {len(grid.breaks)} of them break")
    return SAME


def _written(output: Path, args: argparse.Namespace) -> HeatMap:
    grid, origin, unchecked = _grid(args)
    if output.suffix == ".svg":
        from nvproxy_model.drivers.render.picture import picture

        _write(output, picture(grid))
    else:
        from nvproxy_model.drivers.render.html import page

        _write(output, page(grid, origin, unchecked))
    return grid


def _grid(args: argparse.Namespace) -> tuple[HeatMap, Origin, dict[str, str | None]]:
    from nvproxy_model import versions as table
    from nvproxy_model.drivers.compare.carriers import fd_paths
    from nvproxy_model.drivers.render import heatmap

    with opened(args) as releases:
        names = chosen(releases, args)
        wanted = _wanted(args)
        read = dict(zip(names, read_releases(releases, names, wanted, args), strict=True))
        known = set(releases.versions)
        above = ancestry(releases)
    structs, constants = _select(args, read, wanted)
    unchecked: dict[str, str | None] = {}
    for node in table.load().values():
        parent = node.parent.name if node.parent else None
        if node.name not in known and parent is not None and (parent in read or parent in unchecked):
            unchecked[node.name] = parent
    if args.branch:
        starts = tuple(f"{branch.rstrip('.')}." for branch in args.branch)
        unchecked = {name: parent for name, parent in unchecked.items() if name.startswith(starts)}
    grid = heatmap.build(read, above.get, structs, constants, unchecked, fd_paths())
    if not grid.rows:
        fail("no struct to show: none of the releases has one of these names")
    source = "Recorded facts of NVIDIA's open-gpu-kernel-modules" if args.source is None else f"Read from {args.source}"
    scope = (
        "the structs and numbers that the model uses" if not args.names else "structs named " + ", ".join(args.names)
    )
    return grid, _origin(args, f"{source}: {scope}", grid), unchecked


def _origin(args: argparse.Namespace, what: str, grid: HeatMap) -> Origin:
    from nvproxy_model.drivers import facts
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.render.html import Origin

    recorded = facts.load()
    refs = {}
    for run in grid.runs:
        for version in run.releases:
            if version in recorded:
                at = recorded.provenance(version)
                refs[version] = version if at.kind.endswith("tag") else at.commit
    own = facts.own_file()
    kept = " with releases that were added to them" if own is not None and own.exists() else ""
    by = versions()
    read = f"the recorded facts of {facts.AS_OF}{kept}, newest release {by['newest_release']}"
    return Origin(
        what,
        f"nvproxy-model {by['nvproxy_model']}",
        read if args.source is None else args.source,
        by["gvisor_commit"],
        refs,
        model.calls(),
    )


def _wanted(args: argparse.Namespace) -> Wanted | None:
    """What a source must be asked for; None (all names) where a pattern stands among them."""
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.release import Wanted

    if not args.names:
        return model.names()
    if any(character in name for name in args.names for character in "*?["):
        return None
    return Wanted(frozenset(args.names), frozenset())


def _select(args: argparse.Namespace, read: dict[str, Any], wanted: Wanted | None) -> tuple[set[str], frozenset[str]]:
    if not args.names and wanted is not None:
        return set(wanted.structs), wanted.constants
    known: set[str] = set()
    for release in read.values():
        known.update(release.structs)
    chosen_names: set[str] = set()
    for name in args.names:
        found = fnmatch.filter(known, name) if any(c in name for c in "*?[") else [name] if name in known else []
        if not found:
            import difflib

            near = difflib.get_close_matches(name, known, 1, 0.6)
            fail(f"{name}: none of the releases has such a struct" + (f"; did you mean {near[0]}?" if near else ""))
        chosen_names.update(found)
    return chosen_names, frozenset()


def _write(path: Path, text: str) -> None:
    """Replaces the file in one step, so that nobody finds half of it."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise NvproxyError(f"{path}: {error.strerror or error}") from None
