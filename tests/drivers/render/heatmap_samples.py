"""A small heat map of our own: four releases on two branches, names that try to break out of a page."""

from __future__ import annotations

from nvproxy_model.drivers.release import Release
from nvproxy_model.drivers.render.heatmap import HeatMap, build
from nvproxy_model.drivers.render.html import Origin
from nvproxy_model.layout import Field, Layout

HOSTILE = "\"><script>alert(1)</script>&'{{7*7}}</style>"
PARENTS = {"1.0": None, "1.1": "1.0", "1.2": "1.1", "2.0": "1.1", "2.1": "2.0", "2.2": "2.1"}
UNCHECKED = {"1.3": "1.2"}


def struct(name: str, *fields: tuple[str, int, int, str, str], size: int) -> Layout:
    return Layout(name, "struct", size, 8, tuple(Field(*field) for field in fields))


OLD = struct("S", ("a", 0, 4, "NvU32", "u32"), ("b", 8, 8, "NvU64", "u64"), size=16)
NEW = struct("S", ("a", 0, 4, "NvU32", "u32"), ("n", 8, 8, "NvP64", "ptr"), ("b", 16, 8, "NvU64", "u64"), size=24)
SPELT = struct("S", ("a", 0, 4, "NvV32", "u32"), ("b", 8, 8, "NvU64", "u64"), size=16)
SAME = struct("T", ("x", 0, 8, "NvU64", "u64"), size=8)


def hostile(name: str, size: int) -> Layout:
    return struct(name, (name, 0, size, name, f"u{8 * size}"), size=8)


def releases() -> dict[str, Release]:
    """S: old, old (spelt otherwise), old | new, new, old again. T never changes. U comes at 2.0. One name is hostile."""
    s = {"1.0": OLD, "1.1": SPELT, "1.2": OLD, "2.0": NEW, "2.1": NEW, "2.2": OLD}
    found = {}
    for version, layout in s.items():
        structs = {"S": layout, "T": SAME, HOSTILE: hostile(HOSTILE, 4 if version < "2" else 8)}
        if version >= "2":
            structs["U"] = SAME
        found[version] = Release(version, 1, structs, {"N": 7 if version == "2.2" else 5})
    return found


def sample() -> HeatMap:
    return build(releases(), PARENTS.get, ["S", "T", "U", HOSTILE, "NO_SUCH"], ["N"], UNCHECKED)


ORIGIN = Origin(
    f"A sample, {HOSTILE}",
    "a test",
    f"facts of {HOSTILE}",
    "0123456789abcdef",
    {"1.0": "1.0", "2.0": HOSTILE},
    {"S": [("control", 0x123, "NV_CTRL_S")], HOSTILE: [("alloc", 0x90CD, HOSTILE)]},
)
