"""Who may import whom, and what an embedder pays for the import.

`ARROWS` is the drawing. An arrow that the code uses and the drawing lacks fails, and so does one that is drawn and unused.
Imports under TYPE_CHECKING count; where `import_module` is called stands in `DYNAMIC`, since no tool sees such an import.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from tests import ROOT

# A unit is a top-level module or package; the wings of drivers/, trace/ and tools/ are units of their own.
ARROWS: dict[str, set[str]] = {
    "": {"_version", "caps", "errors", "lazy", "policy", "session"},
    "_version": set(),
    "abi": {"caps", "ioctl", "lazy", "rules", "structs"},
    "caps": set(),
    "cuinterpose": set(),
    "drivers": set(),
    "drivers.authority": {"abi", "drivers.facts", "drivers.privileges", "rules", "versions"},
    "drivers.compare": {
        "abi",
        "caps",
        "drivers.release",
        "drivers.yaml_file",
        "errors",
        "fields",
        "layout",
        "lazy",
        "rules",
        "structs",
        "versions",
    },
    "drivers.evidence": {"abi", "drivers.compare", "drivers.release", "errors", "fields", "rules", "versions"},
    "drivers.facts": {"drivers.privileges", "drivers.release", "errors", "layout", "lazy", "naming"},
    "drivers.gvisor": {
        "abi",
        "caps",
        "drivers.compare",
        "drivers.release",
        "drivers.sources",
        "drivers.yaml_file",
        "errors",
        "fields",
        "followed",
        "layout",
        "rules",
        "versions",
    },
    "drivers.names": {"drivers.facts", "drivers.release", "naming"},
    "drivers.parsing": {"drivers.privileges", "drivers.release", "errors", "kernel", "layout"},
    "drivers.privileges": set(),
    "drivers.release": {"layout", "naming"},
    "drivers.render": {"drivers.compare", "drivers.gvisor", "drivers.release", "errors", "layout", "naming", "structs"},
    "drivers.sources": {"drivers.parsing", "drivers.privileges", "drivers.release", "errors", "lazy", "naming"},
    "drivers.yaml_file": {"errors"},
    "errors": set(),
    "fields": {"errors", "layout", "lifetime", "overlay", "values"},
    "files": {"errors"},
    "followed": set(),
    "ioctl": set(),
    "kernel": set(),
    "layout": set(),
    "lazy": set(),
    "lifetime": set(),
    "live": {
        "abi",
        "caps",
        "errors",
        "fields",
        "ioctl",
        "kernel",
        "lazy",
        "notification",
        "policy",
        "rules",
        "session",
        "signals",
        "structs",
        "task_memory",
    },
    "naming": set(),
    "notification": {"errors", "kernel"},
    "overlay": set(),
    "policy": {"abi", "caps", "errors", "fields", "followed", "ioctl", "lazy", "rules", "structs", "versions"},
    "ports": {"session"},
    "printable": set(),
    "rules": {"caps", "errors", "fields", "followed", "lifetime", "naming", "structs"},
    "seccomp": {"policy"},
    "signals": set(),
    "session": {"abi", "errors", "fields", "ioctl", "lazy", "policy", "structs"},
    "structs": {"errors", "fields"},
    "task_memory": {"errors"},
    "testing": {"abi", "errors", "fields", "ioctl", "policy", "rules", "session", "structs", "versions"},
    "tools": {"", "caps", "drivers.facts", "drivers.render", "errors", "followed", "ioctl", "printable", "versions"},
    "tools.differ": {
        "drivers.authority",
        "drivers.compare",
        "drivers.evidence",
        "drivers.facts",
        "drivers.gvisor",
        "drivers.names",
        "drivers.privileges",
        "drivers.release",
        "drivers.render",
        "drivers.sources",
        "drivers.yaml_file",
        "errors",
        "layout",
        "naming",
        "tools",
        "versions",
    },
    "tools.policy": {
        "abi",
        "caps",
        "drivers.authority",
        "drivers.compare",
        "drivers.facts",
        "drivers.names",
        "drivers.privileges",
        "drivers.release",
        "drivers.render",
        "errors",
        "fields",
        "followed",
        "ioctl",
        "layout",
        "live",
        "naming",
        "policy",
        "printable",
        "rules",
        "session",
        "structs",
        "testing",
        "tools",
        "trace.decode",
        "trace.format",
        "trace.judge",
        "trace.lines",
        "trace.logs",
        "trace.reader",
        "trace.record",
        "versions",
    },
    "tools.trace": {
        "caps",
        "errors",
        "ioctl",
        "policy",
        "printable",
        "tools",
        "trace.decode",
        "trace.format",
        "trace.judge",
        "trace.lines",
        "trace.logs",
        "trace.reader",
        "trace.record",
        "trace.source",
        "trace.study",
        "versions",
    },
    "trace": set(),
    "trace.decode": {
        "abi",
        "drivers.facts",
        "drivers.names",
        "drivers.release",
        "errors",
        "fields",
        "ioctl",
        "layout",
        "printable",
        "rules",
        "structs",
        "trace.format",
        "trace.room",
        "versions",
    },
    "trace.devices": {"ioctl", "trace.format"},
    "trace.format": {"files", "printable", "trace.lines"},
    "trace.judge": {
        "abi",
        "caps",
        "errors",
        "fields",
        "ioctl",
        "policy",
        "session",
        "structs",
        "trace.decode",
        "trace.devices",
        "trace.format",
        "trace.room",
        "trace.study",
        "versions",
    },
    "trace.lines": {"errors", "printable"},
    "trace.logs": {"abi", "ioctl", "printable", "trace.devices", "trace.format", "trace.lines"},
    "trace.reader": {"abi", "ioctl", "printable", "trace.format", "trace.lines", "trace.room"},
    "trace.record": {
        "abi",
        "errors",
        "fields",
        "ioctl",
        "kernel",
        "notification",
        "printable",
        "signals",
        "task_memory",
        "trace.decode",
        "trace.devices",
        "trace.format",
        "trace.lines",
        "versions",
    },
    "trace.room": set(),
    "trace.source": {"printable", "trace.format", "trace.lines", "trace.logs", "trace.reader"},
    "trace.spool": {"trace.record"},
    "trace.study": {
        "abi",
        "drivers.facts",
        "fields",
        "ioctl",
        "layout",
        "trace.decode",
        "trace.format",
        "trace.reader",
    },
    "values": {"lifetime", "versions"},
    "versions": {"errors", "followed"},
}

DYNAMIC = {"nvproxy_model.lazy", "nvproxy_model.tools.command"}
"""Modules that call ``import_module``: for the public names of a package, and for the subcommand that was asked for."""

WINGED = ("drivers", "trace", "tools")
LIGHT = {
    "abi",
    "caps",
    "errors",
    "fields",
    "followed",
    "layout",
    "overlay",
    "policy",
    "rules",
    "session",
    "structs",
    "values",
    "versions",
}
"""Units that an embedder gets: these need construct and PyYAML alone."""


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("nvproxy_model", "cuinterpose", include_external_packages=True)


@cache
def own() -> frozenset[str]:
    return frozenset(name for name in graph().modules if name.split(".")[0] in ("nvproxy_model", "cuinterpose"))


def unit(module: str) -> str:
    """A module's unit: ``policy``, ``drivers.compare``, ``cuinterpose``; "" for the package's own ``__init__``."""
    top, *rest = module.split(".")
    if rest == ["tools", "driver_differ"]:  # the command's main(), whose place is fixed
        return "tools.differ"
    if top != "nvproxy_model":
        return top
    if len(rest) > 1 and rest[0] in WINGED:
        return (
            ".".join(rest[:2]) if rest[0] != "tools" or graph().find_children(".".join([top, *rest[:2]])) else "tools"
        )
    return ".".join(rest[:1])


@cache
def used() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module in own():
        imported = {unit(name) for name in graph().find_modules_directly_imported_by(module) if name in own()}
        found.setdefault(unit(module), set()).update(imported - {unit(module)})
    return found


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A circle in a graph, empty if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("name", sorted(ARROWS))
def test_the_drawing_is_what_the_code_imports(name: str) -> None:
    assert used().get(name, set()) == ARROWS[name]


def test_every_unit_is_drawn() -> None:
    assert set(used()) == set(ARROWS)


def test_the_drawing_has_no_circle() -> None:
    assert circle(ARROWS) == []


def test_no_modules_import_each_other() -> None:
    """Inside a unit as well, imports for types included."""
    arrows = {module: set(graph().find_modules_directly_imported_by(module)) for module in own()}
    assert circle(arrows) == []


def test_no_subcommand_imports_another_command() -> None:
    for name, arrows in ARROWS.items():
        if name.startswith("tools."):
            assert not {arrow for arrow in arrows if arrow.startswith("tools.")}


def test_cuinterpose_stands_alone() -> None:
    assert ARROWS["cuinterpose"] == set()
    assert not [name for name, arrows in ARROWS.items() if "cuinterpose" in arrows]


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_every_import_module_call_is_listed() -> None:
    """nvproxy_model/tools and nvproxy_model/structs are links that are not followed here, so tools/ is read as itself."""
    sites = set()
    for folder in ("nvproxy_model", "tools", "cuinterpose"):
        for path in (ROOT / folder).rglob("*.py"):
            if "import_module(" in path.read_text("utf-8") and not path.is_relative_to(
                ROOT / "nvproxy_model" / "tools"
            ):
                parts = path.relative_to(ROOT).with_suffix("").parts
                sites.add(".".join(part for part in parts if part != "__init__"))
    assert {f"nvproxy_model.{site}" if site.startswith("tools.") else site for site in sites} == DYNAMIC


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_the_policy_library_imports_nothing_heavy(name: str) -> None:
    outside = {
        imported
        for module in own()
        if unit(module) == name
        for imported in graph().find_modules_directly_imported_by(module)
        if imported not in own()
    }
    assert {other.split(".")[0] for other in outside} - set(sys.stdlib_module_names) <= {"construct", "yaml"}


def test_the_wheel_has_no_top_level_structs_or_tools() -> None:
    top = {name.split(".")[0] for module in own() for name in graph().find_modules_directly_imported_by(module)}
    assert not top & {"structs", "tools", "tests"}


def test_the_policy_library_needs_only_construct_and_pyyaml() -> None:
    """An embedder imports, decides, and runs a session with everything else absent."""
    program = """
import sys

ABSENT = "clang rich tree_sitter tree_sitter_go orjson zstandard hypothesis pytest".split()

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from nvproxy_model import Policy, Session, Verdict

policy = Policy.for_driver("580.126.20", caps="compute,utility,profiling")
assert policy.decide_alloc(0x90CD, bytes(72), {}).verdict is Verdict.REJECT
assert policy.decide_control(0x90CD0104, None, {}).allowed
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_readers_of_logs_are_light() -> None:
    """nvproxy-policy takes a pasted line of a log; for that neither orjson nor zstandard is needed."""
    program = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("orjson", "zstandard"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from nvproxy_model.trace.logs.kinds import Import

assert len(list(Import("tests/data/field/m-kubectl.log"))) == 2
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_names_that_moved_are_still_where_embedders_import_them() -> None:
    from nvproxy_model import ports, seccomp
    from nvproxy_model.drivers.compare import compare_releases, findings
    from nvproxy_model.drivers.sources import open_source, opening
    from nvproxy_model.policy import seccomp as allow_lists
    from nvproxy_model.session import ports as session_ports
    from nvproxy_model.trace import spool
    from nvproxy_model.trace.record import spool as recorded

    assert {name: getattr(ports, name) for name in ports.__all__} == {
        name: getattr(session_ports, name) for name in session_ports.__all__
    }
    assert {name: getattr(seccomp, name) for name in seccomp.__all__} == {
        name: getattr(allow_lists, name) for name in allow_lists.__all__
    }
    assert {name: getattr(spool, name) for name in spool.__all__} == {
        name: getattr(recorded, name) for name in recorded.__all__
    }
    assert compare_releases is findings.compare_releases
    assert open_source is opening.open_source
