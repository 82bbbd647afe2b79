"""The driver's tables of who may call what: a small tree of our own, damaged trees, and a real one."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers import privileges
from nvproxy_model.drivers.parsing import nvoc
from nvproxy_model.errors import SourceError
from tests.effort import examples

OLD = {"NON_PRIVILEGED": 0x10, "PRIVILEGED": 0x4, "INTERNAL": 0x400}
NEW = {"NON_PRIVILEGED": 0x8, "PRIVILEGED": 0x4, "INTERNAL": 0x80}
METHODS = {"Gadget": [(0x4711, "USER", "WIDGET"), (0x4712, "ROOT", None), (0x4713, "INNER", "WIDGET")]}


def bits(who: str, numbering: dict[str, int]) -> int:
    return {"USER": numbering["NON_PRIVILEGED"], "ROOT": numbering["PRIVILEGED"], "INNER": numbering["INTERNAL"]}.get(
        who, 0x1
    )


def method(index: int, number: int, flags: int, struct: str | None) -> str:
    size = f"sizeof({struct})" if struct else "0 /* Singleton parameter list */"
    return f"""\
    {{               /*  [{index}] */
#if NVOC_EXPORTED_METHOD_DISABLED_BY_FLAG({flags:#x}u)
        /*pFunc=*/      (void (*)(void)) NULL,
#endif
        /*flags=*/      {flags:#x}u,
        /*accessRight=*/0x0u,
        /*methodId=*/   {number:#x}u,
        /*paramSize=*/  {size},
        /*pClassInfo=*/ &(__nvoc_class_def_Gadget.classInfo),
    }},"""


def exporting(owner: str, methods: list[tuple[int, str, str | None]], numbering: dict[str, int]) -> bytes:
    entries = [method(i, number, bits(who, numbering), struct) for i, (number, who, struct) in enumerate(methods)]
    body = "\n".join(entries)
    return f"""\
static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_{owner}[] =
{{
{body}

}};
const struct NVOC_EXPORT_INFO __nvoc_export_info__{owner} =
{{
    .numEntries=     {len(methods)},
}};
""".encode()


CONTROL_H = """\
#define RMCTRL_FLAGS_NONE 0x0
#define RMCTRL_FLAGS_PRIVILEGED {PRIVILEGED:#011x}
#define RMCTRL_FLAGS_NON_PRIVILEGED {NON_PRIVILEGED:#011x}
#define RMCTRL_FLAGS_INTERNAL {INTERNAL:#011x}
"""
RESOURCES = """\
RS_ENTRY(
    /* External Class         */ MY_ROOT,
    /* Internal Class         */ RmClientResource,
    /* Multi-Instance         */ NV_FALSE,
    /* Parents                */ RS_ROOT_OBJECT,
    /* Alloc Param Info       */ RS_OPTIONAL(NvHandle),
    /* Resource Free Priority */ RS_FREE_PRIORITY_DEFAULT,
    /* Flags                  */ RS_FLAGS_NONE,
    /* Required Access Rights */ RS_ACCESS_NONE
)
RS_ENTRY(
    /* External Class         */ MY_ENGINE,
    /* Internal Class         */ Engine,
    /* Multi-Instance         */ NV_TRUE,
    /* Parents                */ RS_LIST(classId(Device), classId(Subdevice)),
    /* Alloc Param Info       */ RS_REQUIRED(MY_PARAMETERS),
    /* Resource Free Priority */ RS_FREE_PRIORITY_DEFAULT,
    /* Flags                  */ RS_FLAGS_ALLOC_NON_PRIVILEGED |
                                 RS_FLAGS_ACQUIRE_GPUS_LOCK,
    /* Required Access Rights */ RS_ACCESS_NONE
)
RS_ENTRY(
    /* External Class         */ MY_SECRET,
    /* Internal Class         */ Secret,
    /* Multi-Instance         */ NV_TRUE,
    /* Parents                */ RS_ANY_PARENT,
    /* Alloc Param Info       */ RS_NONE,
    /* Resource Free Priority */ RS_FREE_PRIORITY_DEFAULT,
    /* Flags                  */ RS_FLAGS_ALLOC_PRIVILEGED,
    /* Required Access Rights */ RS_ACCESS_NONE
)
"""
CHIPS = """\
#include "core/core.h"

const NvU32 *
gpuGetGenericClassList_IMPL(OBJGPU *pGpu, NvU32 *pNumClassDescriptors)
{
    static const NvU32 genericClassDescriptorList[] = {
        MY_ROOT,
    };
    *pNumClassDescriptors = 1;
    return genericClassDescriptorList;
}

const NvU32 *
gpuGetNoEngClassList_XY100(OBJGPU *pGpu, NvU32 *pNumClassDescriptors)
{
    static const NvU32 halXY100ClassDescriptorList[] = {
        MY_SECRET,
    };
    *pNumClassDescriptors = 1;
    return halXY100ClassDescriptorList;
}

const CLASSDESCRIPTOR *
gpuGetEngClassDescriptorList_XY100(OBJGPU *pGpu, NvU32 *pNumClassDescriptors)
{
    static const CLASSDESCRIPTOR halXY100ClassDescriptorList[] = {
        { MY_ENGINE, ENG_GR(0) },
    };
    *pNumClassDescriptors = NV_ARRAY_ELEMENTS(halXY100ClassDescriptorList);
    return halXY100ClassDescriptorList;
}
"""
NUMBERS = "#define MY_ROOT (0x00000000)\n#define MY_ENGINE (0x0000c0de)\n#define MY_SECRET 0x5ec\n"
DEPRECATED = """\
static const RmDeprecatedControlEntry rmDeprecatedControlTable[] =
{
    { NV0000_CTRL_CMD_OLD_FORM,  V2_CONVERTER(_NV0000_CTRL_CMD_OLD_FORM) },
    { 0, NULL }
};
"""


def tree(numbering: dict[str, int] = NEW) -> dict[str, bytes]:
    """A tree's tables, as the driver's generator writes them."""
    return {
        f"{nvoc.GENERATED}/g_gadget_nvoc.c": exporting("Gadget", METHODS["Gadget"], numbering),
        nvoc.CONTROL_FLAGS: CONTROL_H.format(**numbering).encode(),
        nvoc.RESOURCES: RESOURCES.encode(),
        nvoc.CLASS_LIST: CHIPS.encode(),
        nvoc.CLASS_NUMBERS: NUMBERS.encode(),
        nvoc.DEPRECATED: DEPRECATED.encode(),
    }


@pytest.mark.parametrize("numbering", [OLD, NEW])
def test_privileges_under_both_numberings(numbering: dict[str, int]) -> None:
    files = tree(numbering)
    files[f"{nvoc.GENERATED}/g_kernel_nvoc.c"] = exporting("Kernel", [(0x9, "KERNEL", None)], numbering)
    found = nvoc.parse(files)
    assert found.flags == numbering
    assert dict(found.exports) == {
        0x9: privileges.Export("kernel", None, "Kernel"),
        0x4711: privileges.Export("user", "WIDGET", "Gadget"),
        0x4712: privileges.Export("administrator", None, "Gadget"),
        0x4713: privileges.Export("internal", "WIDGET", "Gadget"),
    }
    assert found.deprecated == {"NV0000_CTRL_CMD_OLD_FORM"}


def test_classes_with_their_chips() -> None:
    found = nvoc.parse(tree())
    assert found.chips == ("XY100",)
    assert dict(found.classes) == {
        0x0: privileges.ClassEntry(
            "MY_ROOT", "user", "NvHandle", False, "RmClientResource", ("RS_ROOT_OBJECT",), ("all",)
        ),
        0xC0DE: privileges.ClassEntry(
            "MY_ENGINE", "user", "MY_PARAMETERS", True, "Engine", ("Device", "Subdevice"), ("XY100",)
        ),
        0x5EC: privileges.ClassEntry(
            "MY_SECRET", "administrator", None, False, "Secret", ("RS_ANY_PARENT",), ("XY100",)
        ),
    }


def test_before_chips_and_class_privileges_were_written_down() -> None:
    files = tree()
    files[nvoc.CLASS_LIST] = re.sub(rb"(?s)const NvU32 \*\n.*?\n}\n", b"", files[nvoc.CLASS_LIST])
    files[nvoc.RESOURCES] = re.sub(rb"RS_FLAGS_ALLOC_\w+", b"RS_FLAGS_NONE", files[nvoc.RESOURCES])
    found = nvoc.parse(files)
    assert found.chips == ()
    assert {entry.chips for entry in found.classes.values()} == {None}
    assert {entry.name: entry.privilege for entry in found.classes.values()} == {
        "MY_ROOT": "user",
        "MY_ENGINE": "",
        "MY_SECRET": "",
    }


def test_a_number_of_two_classes_asks_for_the_lesser_privilege() -> None:
    files = tree()
    files[f"{nvoc.GENERATED}/g_other_nvoc.c"] = exporting("Other", [(0x4712, "USER", None)], NEW)
    assert nvoc.parse(files).exports[0x4712] == privileges.Export("user", None, "Gadget+Other")
    files[f"{nvoc.GENERATED}/g_other_nvoc.c"] = exporting("Other", [(0x4712, "USER", "WIDGET")], NEW)
    with pytest.raises(SourceError, match=r"0x4712 is exported with None and with WIDGET"):
        nvoc.parse(files)


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (f"{nvoc.GENERATED}/g_gadget_nvoc.c", b".numEntries=     3", b".numEntries=     4", "says that it exports 4"),
        (f"{nvoc.GENERATED}/g_gadget_nvoc.c", b"/*methodId=*/   0x4712u", b"/*methodId=*/ ID(0x4712u)", "2 of 3"),
        (f"{nvoc.GENERATED}/g_gadget_nvoc.c", b"sizeof(WIDGET)", b"sizeof(WIDGET) * 2", "1 of 3"),
        (nvoc.CONTROL_FLAGS, b"RMCTRL_FLAGS_INTERNAL", b"RMCTRL_FLAGS_INNER", "not all there"),
        (nvoc.CLASS_LIST, b"*pNumClassDescriptors = 1;", b"*pNumClassDescriptors = 2;", "has 2 classes; 1"),
        (nvoc.CLASS_LIST, b"{ MY_ENGINE, ENG_GR(0) }", b"{ MY_ENGINE, ENG_GR(0), 1 }", "has 1 classes; 0"),
        (nvoc.CLASS_NUMBERS, b"MY_ENGINE", b"ANOTHER", "MY_ENGINE: .*has no number"),
        (nvoc.RESOURCES, b"External Class", b"Outer Class", "an entry without 'External Class'"),
        (nvoc.RESOURCES, b"RS_ACCESS_NONE\n)", b"RS_ACCESS_NONE\n;", "does not end"),
        (nvoc.DEPRECATED, b"{ 0, NULL }", b"{ cmd, NULL },\n    { 0, NULL }", "unknown form"),
    ],
)
def test_a_table_of_another_form_is_an_error(path: str, old: bytes, new: bytes, message: str) -> None:
    files = tree()
    assert old in files[path]
    files[path] = files[path].replace(old, new)
    with pytest.raises(SourceError, match=message):
        nvoc.parse(files)


@pytest.mark.parametrize(
    "path", [nvoc.CONTROL_FLAGS, nvoc.RESOURCES, nvoc.CLASS_LIST, nvoc.CLASS_NUMBERS, nvoc.DEPRECATED]
)
def test_a_tree_without_one_of_them_says_so(path: str) -> None:
    files = tree()
    del files[path]
    with pytest.raises(SourceError, match=f"no {path}"):
        nvoc.parse(files)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_damaged_tables_are_read_or_refused(data: st.DataObject) -> None:
    files = tree()
    path = data.draw(st.sampled_from(sorted(files)))
    text = files[path]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    files[path] = text[:start] + data.draw(st.binary(max_size=20)) + text[end:]
    with contextlib.suppress(SourceError):
        found = nvoc.parse(files)
        assert all(export.privilege in privileges.PRIVILEGES for export in found.exports.values())


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (b"status = portMemExCopyFromUser(pUser, pKernel, size);", True),
        (b"rmapiParamsAcquire(&paramCopy, NV_TRUE)", True),
        (b"status = os_memcpy_to_user (a, b, c);", True),
        (b"// portMemExCopyFromUser is what others call", False),
        (b"portMemCopy(a, b, c, d);", False),
    ],
)
def test_files_that_copy_user_memory(text: bytes, copies: bool) -> None:
    assert nvoc.copies_user_memory(text) is copies
