"""The rows against the driver's own tables of who may call what, in every recorded release that a listed one stands for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from nvproxy_model import abi
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.authority import listed_for
from nvproxy_model.drivers.privileges import INTERNAL, KERNEL, Privileges
from nvproxy_model.drivers.release import Release
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.plan import plan
from nvproxy_model.rules import Rule, active
from nvproxy_model.versions import DriverVersion

FACTS = facts.load(facts.FACTS)


class Tree(NamedTuple):
    """One recorded release with its tables and the rows that hold there."""

    version: str
    node: DriverVersion
    release: Release
    privileges: Privileges

    def rows(self) -> Iterator[Rule]:
        return (rule for rule in active(abi.CONTROL, self.node).values() if not rule.rejected)


@cache
def trees() -> tuple[Tree, ...]:
    found = []
    for version in FACTS.versions:
        node = listed_for(version, FACTS.parent)
        privileges = FACTS.privileges(version)
        assert privileges is not None
        if node is not None:
            found.append(Tree(version, node, FACTS.release(version), privileges))
    return tuple(found)


def descends(version: str, from_: str) -> bool:
    at: str | None = version
    while at is not None and at != from_:
        at = FACTS.parent(at)
    return at is not None


class Span(NamedTuple):
    """The recorded releases from one (or one of several) on, up to another: by ancestry in git."""

    since: str = "515.43.04"
    until: str | None = None

    def holds(self, version: str) -> bool:
        return any(descends(version, first) for first in self.since.split()) and not (
            self.until and descends(version, self.until)
        )


NOT_EXPORTED = {
    0x00000101: Span(),  # a deprecated form, as are the next five: converted before the look-up
    0x20800802: Span(),
    0x00801B01: Span("550.40.07"),
    0x20801301: Span("550.40.07"),
    0x20801802: Span("555.42.02 560.28.03"),
    0x0080028B: Span(),  # gVisor's UNKNOWN_CONTROL_COMMAND_80028B
    0x20800309: Span(until="545.29.06"),
    0x20803083: Span("560.28.03", "565.57.01"),
}
"""Rows whose number the driver's CPU side does not export, and where."""


def test_every_recorded_tree_has_its_tables() -> None:
    assert len(FACTS.versions) == 207
    assert len(trees()) == 139
    counts = {tree.version: len(tree.privileges.exports) for tree in trees()}
    assert (counts["535.104.05"], counts["580.126.20"], counts["595.71.05"], counts["610.57.04"]) == (
        1124,
        1348,
        1341,
        1362,
    )


def test_the_two_numberings_of_the_flags() -> None:
    """They moved at 555.42.02; a table read with the other numbering would make every user's control a kernel's."""
    for version in FACTS.versions:
        privileges = FACTS.privileges(version)
        assert privileges is not None
        late = int(version.partition(".")[0]) >= 555  # by branch: 550.90.07 came later and kept the old one
        assert privileges.flags == {
            "PRIVILEGED": 0x4,
            "NON_PRIVILEGED": 0x8 if late else 0x10,
            "INTERNAL": 0x80 if late else 0x400,
        }


def test_each_number_is_exported_with_the_struct_that_its_row_names() -> None:
    seen: dict[int, set[str]] = {}
    for tree in trees():
        for rule in tree.rows():
            export = tree.privileges.exports.get(rule.number)
            if export is None:
                seen.setdefault(rule.number, set()).add(tree.version)
                continue
            ours = rule.struct_at(tree.node)
            if export.struct != ours:
                alias = tree.release.structs.get(export.struct or "")
                assert alias is not None, (tree.version, rule)
                assert alias == tree.release.structs.get(ours or ""), (tree.version, rule)
    assert seen == {
        number: {tree.version for tree in trees() if span.holds(tree.version)} for number, span in NOT_EXPORTED.items()
    }


def test_the_exceptions_in_535_104_05() -> None:
    """Three of the deprecated forms were exported there: a list that holds for all releases would hide a lost number."""
    first = trees()[0]
    assert first.version == "535.104.05"
    assert {0x801B01, 0x20801301, 0x20801802} <= first.privileges.exports.keys()
    original = FACTS.privileges("515.43.04")
    assert original is not None
    assert {0x801B01, 0x20801301, 0x20801802} <= original.exports.keys()


def test_deprecated_forms_are_the_drivers_own_list() -> None:
    names = {rule.number: rule.name for rule in abi.CONTROL}
    for tree in trees():
        for number in NOT_EXPORTED.keys() - {0x80028B, 0x20800309, 0x20803083} - tree.privileges.exports.keys():
            assert names[number] in tree.privileges.deprecated, (tree.version, names[number])


def test_no_admitted_row_is_the_drivers_or_the_kernels_own() -> None:
    for tree in trees():
        for rule in tree.rows():
            export = tree.privileges.exports.get(rule.number)
            assert export is None or export.privilege not in (KERNEL, INTERNAL), (tree.version, rule)


def test_rows_that_need_an_administrator_are_known() -> None:
    """The driver refuses them to a sandbox whose process is a plain user of the host."""
    found = {
        (rule.name, tree.privileges.exports[rule.number].privilege)
        for tree in trees()
        for rule in tree.rows()
        if rule.number in tree.privileges.exports and tree.privileges.exports[rule.number].privilege != "user"
    }
    assert found == {
        ("NV00F8_CTRL_CMD_DESCRIBE", "administrator"),  # before 545.23.06
        ("NV2080_CTRL_CMD_CE_GET_LCE_SHIM_INFO", "administrator"),
    }


NOWHERE = {
    "NVENC_SW_SESSION": {
        *("580.65.06", "580.76.05", "580.82.07", "580.82.09", "580.95.05", "580.94.02", "580.94.03", "580.94.06"),
        *("580.94.10", "580.94.11", "580.94.13", "580.105.08", "580.119.02", "590.44.01", "590.48.01"),
    }
}
"""Classes that the lists by chip lack, and where."""


def test_each_class_is_in_the_drivers_list() -> None:
    absent: dict[str, set[str]] = {}
    nowhere: dict[str, set[str]] = {}
    for tree in trees():
        for number, rule in active(abi.ALLOC, tree.node).items():
            entry = tree.privileges.classes.get(number)
            if entry is None:
                absent.setdefault(rule.name, set()).add(tree.version)
            else:
                assert rule.rejected or entry.privilege == "user", (tree.version, rule)
                if entry.chips == ():
                    nowhere.setdefault(rule.name, set()).add(tree.version)
    early = {tree.version for tree in trees() if tree.version.startswith("545.")}
    assert absent == {"NV_EVENT_BUFFER_BIND": {tree.version for tree in trees()}, "NV_MEMORY_EXPORT": early}
    assert nowhere == NOWHERE


def test_what_the_driver_copies_through_pointers_is_a_buffer_here() -> None:
    """A row that RM copies through (embedded_param_copy.c) and that is passed on as bytes would hand it the guest's pointer."""
    checked = 0
    for tree in trees():
        rows = active(abi.CONTROL, tree.node)
        for control in tree.release.embedded:
            rule = rows.get(tree.release.constants.get(control, -1))
            if rule is not None and not rule.rejected:
                params = rule.params_at(tree.node)
                assert isinstance(params, CStruct), (tree.version, rule)
                assert plan(params).pointers, (tree.version, rule)
                checked += 1
    assert checked > 139 * 10


COPYING = {
    "src/nvidia/arch/nvalloc/unix/src/escape.c",
    "src/nvidia/arch/nvalloc/unix/src/osapi.c",
    "src/nvidia/interface/deprecated/rmapi_gss_legacy_control.c",
    "src/nvidia/src/kernel/gpu/fifo/kernel_idle_channels.c",
    "src/nvidia/src/kernel/gpu/gr/kernel_sm_debugger_session_ctrl.c",
    "src/nvidia/src/kernel/gpu/mem_mgr/mem_mgr_ctrl.c",
    "src/nvidia/src/kernel/rmapi/alloc_free.c",
    "src/nvidia/src/kernel/rmapi/control.c",
    "src/nvidia/src/kernel/rmapi/embedded_param_copy.c",
    "src/nvidia/src/kernel/rmapi/param_copy.c",
    "src/nvidia/src/libraries/nvport/memory/memory_unix_kernel_os.c",
}
"""The driver's files that copy user memory. One more would be a pointer that nobody has looked at."""


def test_the_files_that_copy_user_memory_are_the_known_ones() -> None:
    for version in FACTS.versions:
        privileges = FACTS.privileges(version)
        assert privileges is not None
        early = not descends(version, "525.53") and version[:3] in ("515", "520")
        assert privileges.copying == COPYING - ({"src/nvidia/arch/nvalloc/unix/src/escape.c"} if early else set()), (
            version
        )
