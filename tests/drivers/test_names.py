"""NVIDIA's names: against the tables' own, against what a header says beside the number, and against known traps."""

from __future__ import annotations

import pytest

from nvproxy_model import abi
from nvproxy_model.drivers import facts, names
from nvproxy_model.drivers.names import CallNames, symbol
from tests.effort import part

UNPUBLISHED = {
    "UNKNOWN_CONTROL_COMMAND_80028B",
    "NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION",
    "NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION",
    "NV_EVENT_BUFFER_CTRL_CMD_NULL",
}
"""Names that no public header gives a number."""


def test_the_tables_names_are_the_headers() -> None:
    newest = max(facts.load().versions, key=lambda version: [int(part) for part in version.split(".")])
    since = {
        rule.name for rows in abi.TABLES.values() for rule in rows if all(node > newest for node in rule.since or ())
    }
    wrong = {
        rule.name
        for table, rows in abi.TABLES.items()
        for rule in rows
        if rule.name not in names.ever().all(table, rule.number) and not (rule.since and rule.name in since)
    }
    assert wrong == UNPUBLISHED


@pytest.mark.parametrize(
    ("table", "number", "name"),
    [
        ("uvm", 0x7FF, "UVM_IS_8_SUPPORTED"),
        ("uvm", 0x37, "UVM_DISABLE_SYSTEM_WIDE_ATOMICS"),
        ("uvm", 0x30000002, "UVM_DEINITIALIZE"),
        ("frontend", 0x39, "NV_ESC_RM_I2C_ACCESS"),
        ("frontend", 0x52, "NV_ESC_RM_GET_EVENT_DATA"),
        ("frontend", 0xD3, "NV_ESC_IOCTL_XFER_CMD"),
        ("frontend", 0xD5, "NV_ESC_QUERY_DEVICE_INTR"),
        ("alloc", 0xA081, "NVA081_VGPU_CONFIG"),
        ("alloc", 0xC639, "AMPERE_SMC_CONFIG_SESSION"),
        ("alloc", 0x3E, "NV01_MEMORY_SYSTEM"),
        ("alloc", 0x7D, "NV04_SOFTWARE_TEST"),
        ("control", 0x3D0B, "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD"),
        ("control", 0x90CD0101, "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS"),
        # Numbers that only limits, masks, indices and functions of nvos.h have.
        ("alloc", 0x1000, None),
        ("alloc", 0x4000, None),
        ("alloc", 0xFFFF, None),
        ("alloc", 0x27, None),
        ("alloc", 0x35, None),
        ("control", 0x3DFE, None),
        ("other", 0x7D, None),
    ],
)
def test_the_name_of_a_number(table: str, number: int, name: str | None) -> None:
    assert names.ever().name(table, number) == name


def test_the_names_of_one_number_are_those_among_all() -> None:
    tables = names.ever().tables
    numbers = {number for of in tables.values() for number in sorted(of)[:: max(len(of) // 25, 1)]}
    for number in sorted(numbers | {0, 0x7D, 0x1000, 0xFFFF}):
        assert names.ever_called(number) == {table: of.get(number, ()) for table, of in tables.items()}


def test_the_drivers_own_classes_are_classes() -> None:
    """resource_list.h of every recorded release: each class has a name, and it is one that the driver gives it."""
    recorded = facts.load()
    seen = set()
    for version in recorded.versions:
        privileges = recorded.privileges(version)
        assert privileges is not None
        for number, entry in privileges.classes.items():
            assert entry.name in names.ever().all("alloc", number)
            seen.add(number)
    assert len(seen) > 150


def test_a_class_header_names_its_number_twice() -> None:
    """The struct that <struct>_MESSAGE_ID names with a class's whole number belongs to that class: an independent witness."""
    nameless = {0x85B5, 0x84A0}  # their headers have the structs and no names
    found = 0
    for release in (facts.load().release(version) for version in ("535.43.02", "595.45.04")):
        classes = CallNames.of(release).tables["alloc"]
        for name, number in release.constants.items():
            if name.endswith("_MESSAGE_ID") and "_CTRL_" not in name and number > 0xFFF and number not in nameless:
                assert number in classes, name
                found += 1
    assert found > 20


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("NV_OK", "status", "NV status"),
        ("NV_ERR_INVALID_CLASS", "status", "NV status"),
        ("NV_WARN_MORE_PROCESSING_REQUIRED", "status", "NV status"),
        ("NVKMS_IOCTL_ALLOC_DEVICE", "foreign", "/dev/nvidia-modeset"),
        ("NV2080_ENGINE_TYPE_GRAPHICS", "other", "an engine type"),
        ("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_MESSAGE_ID", "other", "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS"),
        ("NV_EVENT_BUFFER_ALLOC_PARAMETERS_MESSAGE_ID", "other", "index of the struct"),
        ("UvmCounterNameCpuPageFaultCount", "other", "enum"),
        ("NV04_MAP_MEMORY_FLAGS_USER", "other", "not the number of a call"),
        ("UVM_CREATE_RANGE_GROUP", "uvm", "a UVM command"),
        ("NV_ESC_CARD_INFO", "frontend", "an escape"),
        ("NV_EVENT_BUFFER", "alloc", "a class"),
        ("NV2080_CTRL_CMD_GPU_GET_NAME_STRING", "control", "a control command"),
    ],
)
def test_what_a_symbol_is(name: str, kind: str, words: str) -> None:
    found = symbol(name)
    assert found is not None
    assert (found.name, found.kind) == (name, kind)
    assert words in found.what


def test_no_status_index_or_engine_type_is_a_call() -> None:
    """Every constant of the headers by the words in its name: a value that looks like a class's is not a class."""
    kinds: dict[str, set[str]] = {}
    for name in facts.load().names("constants"):
        if name.startswith(("NV_ERR_", "NV_WARN_")):
            kinds.setdefault("status", set()).add(name)
        elif name.endswith("_MESSAGE_ID") or "_ENGINE_TYPE_" in name:
            kinds.setdefault("other", set()).add(name)
        elif name.startswith("NVKMS_IOCTL_"):
            kinds.setdefault("foreign", set()).add(name)
    assert {kind: len(found) > 30 for kind, found in kinds.items()} == {"status": True, "other": True, "foreign": True}
    for kind, found in kinds.items():
        for name in part(sorted(found)):
            assert symbol(name).kind == kind, name  # type: ignore[union-attr]


def test_no_symbol() -> None:
    assert symbol("NV_NO_SUCH_THING") is None


def test_one_number_has_the_names_that_all_together_give_it() -> None:
    recorded, statuses = facts.load(), names.ever().statuses
    for number in (*sorted(statuses)[::9], 0x90CD, 0x4E9):
        assert names.ever_status(number) == statuses.get(number)
    classes = recorded.classes()
    assert {number: dict(recorded.with_class(number)) for number in classes} == classes
    assert recorded.with_class(0x4E9) == {}
