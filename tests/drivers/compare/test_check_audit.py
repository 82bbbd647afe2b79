"""The model against recorded releases, and the audit of fields that carry descriptors and pointers."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from typing import Any

import pytest

from nvproxy_model import versions
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import carriers, model
from nvproxy_model.drivers.compare.audit import audit_release
from nvproxy_model.drivers.compare.check import CheckedRelease, CheckReport, check_release, model_release, not_checkable
from nvproxy_model.drivers.compare.placement import adopted
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Layout
from tests.drivers import tinygrad_tables

FACTS = facts.load()
LISTED = [version for version in versions.load() if version in FACTS]


def altered(release: Release, **tables: Mapping[str, Any]) -> Release:
    """A release with some entries replaced; None removes one."""
    merged = {}
    for table, changes in tables.items():
        entries = dict(getattr(release, table)) | dict(changes)
        merged[table] = {name: value for name, value in entries.items() if value is not None}
    return release._replace(**merged)


@pytest.mark.parametrize("version", LISTED)
def test_every_listed_release_is_the_same(version: str) -> None:
    checked = check_release(FACTS.release(version), version)
    assert checked.findings == ()
    assert checked.structs > 280
    assert checked.constants > 350


def test_which_cannot_be_checked() -> None:
    """Releases of nvproxy's table whose headers nobody published, as far as our copy goes."""
    assert [version for version in versions.load() if version not in LISTED] == [
        "580.167.08",
        "580.173.02",
        "580.173.10",
        "580.178.04",
        "615.15.00",
        "615.62.00",
        "615.71.09",
        "620.06.00",
        "620.30.00",
        "620.32.00",
        "620.47.00",
        "620.51.00",
    ]


RELEASE = FACTS.release("580.105.08")


def findings(release: Release) -> list[tuple[str, str]]:
    return [(f.kind, f.name) for f in check_release(release, "580.105.08").findings]


def test_a_missing_struct_and_a_misspelt_name_are_found() -> None:
    gone = altered(RELEASE, structs={"NVOS64_PARAMETERS": None, "NV0080_CTRL_GPU_GET_NUM_SUBDEVICES_PARAMS": None})
    found = check_release(gone, "580.105.08").findings
    assert [(f.kind, f.name) for f in found] == [
        ("struct-removed", "NV0080_CTRL_GPU_GET_NUM_SUBDEVICES_PARAMS"),
        ("struct-removed", "NVOS64_PARAMETERS"),
    ]
    assert "did you mean NVOS6" in found[1].detail


def test_a_wrong_number_and_a_missing_one_are_found() -> None:
    wrong = altered(
        RELEASE, constants={"NV_ESC_RM_CONTROL": 0x2B, "NV_EVENT_BUFFER": None, "NV_ERR_INVALID_CLASS": 0x21}
    )
    assert findings(wrong) == [
        ("constant-changed", "NV_ERR_INVALID_CLASS"),
        ("constant-changed", "NV_ESC_RM_CONTROL"),
        ("constant-removed", "NV_EVENT_BUFFER"),
    ]


def test_a_moved_field_is_found_and_another_spelling_is_not() -> None:
    layout = RELEASE.structs["NVOS54_PARAMETERS"]
    first, second, *rest = layout.fields
    moved = layout._replace(fields=(first._replace(offset=4), second._replace(offset=0), *rest))
    assert findings(altered(RELEASE, structs={"NVOS54_PARAMETERS": moved})) == [
        ("field-moved", "NVOS54_PARAMETERS.hClient"),
        ("field-moved", "NVOS54_PARAMETERS.hObject"),
    ]
    spelled = layout._replace(fields=(first._replace(type="NvU32"), second, *rest))
    assert findings(altered(RELEASE, structs={"NVOS54_PARAMETERS": spelled})) == []


def passed_by_name() -> str:
    return next(
        r.struct for r in model.rows("580.105.08") if r.struct and r.struct not in model.used_structs("580.105.08")
    )


@pytest.mark.parametrize(
    ("name", "type_", "base", "kind"),
    [
        ("x", "NvP64", "ptr", "pointer-gained"),
        ("x", "NvU8 *", "ptr", "pointer-gained"),
        ("shareFd", "NvS32", "s32", "fd-gained"),
    ],
)
def test_a_struct_passed_by_name_may_hold_no_pointer_and_no_fd(name: str, type_: str, base: str, kind: str) -> None:
    struct = passed_by_name()
    layout = RELEASE.structs[struct]
    field = layout.fields[0]._replace(name=name, type=type_, base=base, dims=(), record=None)
    found = check_release(altered(RELEASE, structs={struct: layout._replace(fields=(field,))}), "580.105.08").findings
    assert [(f.name, f.class_) for f in found] == [(f"{struct}.{name}", kind)]


def test_a_row_with_another_struct_than_the_headers_derive_its_number_from_is_found() -> None:
    control = "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES"
    other = altered(RELEASE, params={control: "NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS"})
    (found,) = check_release(other, "580.105.08").findings
    assert (found.name, found.next) == (
        "NV0080_CTRL_GPU_GET_NUM_SUBDEVICES_PARAMS",
        "NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS",
    )


def test_the_drivers_own_embedded_list_is_heeded() -> None:
    row = next(r for r in model.rows("580.105.08") if r.struct == passed_by_name())
    found = check_release(altered(RELEASE, embedded={row.rule.name: ("list",)}), "580.105.08").findings
    assert [(f.name, f.class_) for f in found] == [(f"{row.struct}.list", "pointer-gained")]


def test_the_model_of_a_release_that_is_not_listed() -> None:
    assert model_release("570.211.01", FACTS.parent) == "570.195.03"
    assert model_release("580.126.20", FACTS.parent) == "580.126.20"
    assert model_release("535.43.02", FACTS.parent) is None


def test_at_most_two_names_are_suggested() -> None:
    name = "NVOS54_PARAMETERS"
    near = {f"{name}_{letter}": RELEASE.structs[name] for letter in "ABC"}
    few = RELEASE._replace(structs={**near, "UNLIKE": RELEASE.structs[name]})
    (found,) = (f for f in check_release(few, "580.105.08").findings if f.name == name)
    assert found.detail == f"no such struct; did you mean {name}_C or {name}_B?"


@pytest.mark.parametrize(
    ("statuses", "status", "summary"),
    [
        (("same",), 0, "1 of 1 releases compared: 1 same, 0 different; 0 not checkable"),
        (("same", "different"), 1, "2 of 2 releases compared: 1 same, 1 different; 0 not checkable"),
        (("different",), 1, "1 of 1 releases compared: 0 same, 1 different; 0 not checkable"),
        (
            ("same", "same", "agrees", "not-checkable"),
            0,
            "2 of 4 releases compared: 2 same, 0 different; 1 agrees with an independent table, 1 not checkable",
        ),
        (
            ("agrees", "agrees"),
            2,
            "0 of 2 releases compared: 0 same, 0 different; 2 agree with an independent table, 0 not checkable",
        ),
    ],
)
def test_a_report_counts_its_releases(statuses: tuple[str, ...], status: int, summary: str) -> None:
    report = CheckReport("x", tuple(CheckedRelease("1", "1", word) for word in statuses))
    assert (report.exit_status, report.summary) == (status, summary)
    counted = report.as_json()["summary"]
    assert {word: counted[word] for word in ("same", "different", "agrees", "not-checkable")} == {
        word: statuses.count(word) for word in ("same", "different", "agrees", "not-checkable")
    }
    assert counted["compared"] == statuses.count("same") + statuses.count("different")


def test_what_cannot_be_checked_counts_nothing() -> None:
    stated = not_checkable("620.06.00", "no public source").as_json()
    assert (stated["headers"], stated["structs"], stated["constants"], stated["findings"]) == (0, 0, 0, [])


def test_nothing_compared_is_not_green() -> None:
    assert CheckReport("x", (not_checkable("620.06.00", "no public source"),)).exit_status == 2
    assert CheckReport("x", ()).exit_status == 2


def test_the_model_agrees_with_tinygrads_table_of_a_release_without_a_public_tag() -> None:
    """610.43.03: newer than any tag. Its structs and numbers as an independent generator saw them."""
    table = json.loads(lzma.decompress(tinygrad_tables.EXTRACT.read_bytes()))["610.43.03"]
    structs = {n: layout for n, layout in model.used_structs("610.43.02").items() if n in table["structs"]}
    assert len(structs) > 110
    for name, layout in structs.items():
        size, offsets = table["structs"][name]
        assert layout.size == size, name
        mine = {field.name: field.offset for field in layout.fields}
        assert {path: mine.get(path, offset) for path, offset in offsets.items()} == offsets, name
    numbers = {r.rule.name: r.rule.number for r in model.rows("610.43.02") if r.rule.name in table["constants"]}
    assert len(numbers) > 290
    assert {name: table["constants"][name] for name in numbers} == numbers


# Audit.


@pytest.mark.parametrize("version", LISTED)
def test_every_carrier_of_an_admitted_struct_is_classified(version: str) -> None:
    audited = list(audit_release(FACTS.release(version), version))
    assert [a for a in audited if a.problem] == []
    assert len(audited) > 70


def needed() -> list[carriers.Known]:
    """Curated entries for structs that some listed release admits."""
    admitted = {r.struct for version in LISTED for r in model.rows(version) if not r.rule.rejected}
    return [entry for entry in carriers.CURATED if entry.struct in admitted]


def test_deleting_any_curated_entry_of_an_admitted_struct_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = needed()
    assert len(entries) > 35
    survived = []
    for entry in entries:
        table = dict(carriers._CURATED)
        del table[entry.struct, entry.path]
        with monkeypatch.context() as patch:
            patch.setattr(carriers, "_CURATED", table)
            if not any(
                a.problem
                for v in ("535.104.05", "580.105.08", "590.48.01", "610.57.04")
                for a in audit_release(FACTS.release(v), v)
            ):
                survived.append((entry.struct, entry.path))
    assert survived == []


def test_curated_entries_name_fields_that_exist() -> None:
    for entry in carriers.CURATED:
        paths = {
            path.replace("[]", "")
            for version in ("535.104.05", "580.105.08", "595.45.04", "610.57.04")
            if (layout := FACTS.release(version).structs.get(entry.struct)) is not None
            for path in (leaf.path for leaf in layout.leaves())
        }
        assert entry.path.replace("[]", "") in paths, entry
        assert entry.function


def test_a3_descriptors_hidden_in_pointers_and_integers() -> None:
    audited = {(a.struct, a.path): a for a in audit_release(FACTS.release("595.45.04"), "590.48.01", everything=True)}
    hidden = [
        ("NV0005_ALLOC_PARAMETERS", "data"),
        ("NV00F1_ALLOCATION_PARAMETERS", "pOsEvent"),
        ("NV00F9_ALLOCATION_PARAMETERS", "pOsEvent"),
        ("NV00FD_ALLOCATION_PARAMETERS", "pOsEvent"),
        ("NV00FD_CTRL_REGISTER_EVENT_PARAMS", "pOsEvent"),
        ("NV_EVENT_BUFFER_ALLOC_PARAMETERS", "notificationHandle"),
        ("NV_SEMAPHORE_SURFACE_CTRL_REGISTER_WAITER_PARAMS", "notificationHandle"),
        ("NV_SEMAPHORE_SURFACE_CTRL_UNREGISTER_WAITER_PARAMS", "notificationHandle"),
        ("UVM_REGISTER_GPU_PARAMS", "rmCtrlFd"),
        ("UVM_MM_INITIALIZE_PARAMS", "uvmFd"),
    ]
    assert {audited[field].what for field in hidden} == {"fd"}
    signed = [name for name, layout in FACTS.release("595.45.04").structs.items() if _has_signed_fd(name, layout)]
    assert len(signed) == 8
    assert {audited[name, "fd"].what for name in signed} == {"fd"}


def _has_signed_fd(name: str, layout: Layout) -> bool:
    return "_CTRL_" in name and any(f.name == "fd" and f.type == "NvS32" for f in layout.fields)


def test_pointers_of_every_shape_are_found() -> None:
    release = FACTS.release("580.105.08")
    for struct, path in (
        ("NVOS32_PARAMETERS", "data.AllocSize.address"),  # in a union
        ("NV402C_CTRL_I2C_TRANSACTION_PARAMS", "transData.i2cBlockData.pMessage"),
        ("NV5080_CTRL_DEFERRED_API_PARAMS", "api_bundle.FillPteMem.pteMem"),
        ("NV83DE_CTRL_DEBUG_ACCESS_SURFACE_PARAMETERS", "opsBuffer[].pCpuVA"),  # in an array
        ("NV00F8_CTRL_GET_PAGE_LEVEL_INFO_PARAMS", "levels[].pFmt"),
    ):
        assert path in {c.path for c in carriers.found_by_shape(release.structs[struct])}, struct


def test_a_new_release_adopts_listed_descendants() -> None:
    assert adopted("570.169", "570.133.20", FACTS.parent) == ["570.172.08"]
    assert adopted("570.211.01", "570.195.03", FACTS.parent) == []
