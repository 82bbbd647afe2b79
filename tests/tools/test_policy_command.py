"""nvproxy-policy: answers, JSON, exit statuses, and one line for every mistake."""

from __future__ import annotations

import contextlib
import copy
import csv
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model import Policy, versions
from nvproxy_model.followed import is_pending
from nvproxy_model.tools.policy import main
from nvproxy_model.tools.policy import names as policy_names
from nvproxy_model.tools.policy.names import Call
from nvproxy_model.tools.policy.upstream import driver, gvisor, place
from tests import ROOT
from tests.effort import examples, part, sampled
from tests.schemas import document

DATA = ROOT / "tests" / "data"
VECTORS = DATA / "nvproxy_vectors.json.xz"
TREE = versions.load()
LATEST = TREE.latest


class Run:
    """One command run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        try:
            self.status = main(argv)
        except SystemExit as stop:
            self.status = int(stop.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return document(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *argv: Run(capsys, *argv)


# explain


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("0xc030462b", [Call("frontend", 0x2B, 48)]),
        ("3224389163", [Call("frontend", 0x2B, 48)]),
        ("_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, 0x30)", [Call("frontend", 0x2B, 48)]),
        ("_IOWR('F', 0x2b, 48)", [Call("frontend", 0x2B, 48)]),
        ("_IOWR(0x46, 43, NVOS64_PARAMETERS)", [Call("frontend", 0x2B, 48)]),
        ("0x46ce", [Call("frontend", 0xCE)]),
        ("NV_ESC_RM_ALLOC", [Call("frontend", 0x2B)]),
        ("NVOS21_PARAMETERS", [Call("frontend", 0x2B)]),
        ("0x20801231", [Call("control", 0x20801231)]),
        ("545264177", [Call("control", 0x20801231)]),
        ("NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID", [Call("control", 0x20801231)]),
        ("nv_event_buffer", [Call("alloc", 0x90CD)]),
        ("NV_EVENT_BUFFER_ALLOC_PARAMETERS", [Call("alloc", 0x90CD)]),
        ("0x30000001", [Call("uvm", 0x30000001)]),
        ("0x41", [Call("frontend", 0x41), Call("uvm", 0x41), Call("alloc", 0x41)]),
        ("0xc639", [Call("alloc", 0xC639)]),
        ("fe 0x39", [Call("frontend", 0x39)]),
        ("uvm 0x41", [Call("uvm", 0x41)]),
        ("UVM command 0x41", [Call("uvm", 0x41)]),
        ("class 0x41", [Call("alloc", 0x41)]),
        ("control 0x3d05 NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD  x1, host 0", [Call("control", 0x3D05)]),
        ("0xd3", [Call("frontend", 0xD3)]),
        ("0x2080852f", [Call("control", 0x2080852F)]),
        ("NV2080_CTRL_CMD_GR_GET_CTXSW_MODES", [Call("control", 0x20801235)]),
    ],
)
def test_what_a_text_may_mean(text: str, calls: list[Call]) -> None:
    assert policy_names.asked(text, None, LATEST).calls == tuple(calls)


def test_a_kind_picks_one_reading() -> None:
    assert policy_names.asked("0x41", "alloc", LATEST).calls == (Call("alloc", 0x41),)
    assert policy_names.asked("0x4242", "control", LATEST).calls == (Call("control", 0x4242),)


@pytest.mark.parametrize(
    ("argv", "status", "needles"),
    [
        (["NV_EVENT_BUFFER"], 1, ["profiling", "status 0x22", "rmAllocEventBuffer", "event_buffer.c"]),
        (
            ["NV_EVENT_BUFFER", "--caps", "compute,profiling"],
            0,
            ["admitted, subject to its fields", "notificationHandle"],
        ),
        (["NV_EVENT_BUFFER", "--caps", "profiling"], 1, ["compute or utility", "EINVAL"]),
        (["0x20800301"], 0, ["admitted", "rmControlSimple"]),
        (["0x2080123d", "--driver", "570.195.03"], 1, ["other releases", "from 580.65.06", "profiling"]),
        (["0x7f", "--kind", "alloc"], 1, ["only kernel clients bind"]),
        (["0xd7", "--kind", "frontend"], 1, ["NUMA"]),
        (["0x20801238", "--caps", "all,profiling"], 1, ["opt-in", "extra=[0x20801238]"]),
        (["0x17", "--kind", "uvm"], 1, ["until 610.43.02"]),
        (["0x17", "--kind", "uvm", "--driver", "580.126.20"], 0, ["UVM_CREATE_RANGE_GROUP_PARAMS, 16 bytes"]),
        (["0x2080a63c"], 0, ["RM_GSS_LEGACY_MASK"]),
        (["0x20810108"], 0, ["NV2081_BINAPI"]),
        (["0x2017ff"], 1, ["class 0x20, category 0x17, id 0xff", "nearest"]),
        (["_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x21)"], 1, ["_IOC_SIZE: want 32 bytes, found 33", "want 32 bytes"]),
        (["_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, 0x20)"], 0, ["NVOS21_PARAMETERS, 32 bytes"]),
        (["0x2080018b"], 0, ["swizzId", "from the headers of"]),
        (["NV01_MEMORY_DEVICELESS", "--profile", "hardened"], 1, ["profiling"]),
        (["5", "--kind", "alloc"], 0, ["NV01_EVENT", "hClass"]),
        (["0x288", "--driver", "575.51.02", "--allow-unsupported"], 0, ["575.51.02"]),
        (
            ["0x20801358", "--driver", "570.195.03"],
            0,
            ["INFOROM_SUPPORT", "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS"],
        ),
    ],
)
def test_explain(run: Any, argv: list[str], status: int, needles: list[str]) -> None:
    done = run("explain", *argv)
    assert (done.status, done.err) == (status, "")
    for needle in needles:
        assert needle in done.out, done.out
    assert run("explain", *argv, "--json").status == status


NOT_CALLS = [
    ("NV_OK", "status", "0x0 as an NV status is NV_OK"),
    ("NV_ERR_NOT_SUPPORTED", "status", "answers a control command with it"),
    ("NV_ERR_INVALID_CLASS", "status", "answers an allocation with it"),
    ("NV_ERR_BROKEN_FB", "status", "nvproxy itself never gives it"),
    ("NV2080_ENGINE_TYPE_GRAPHICS", "other", "an engine type"),
    ("NV2080_ENGINE_TYPE_COPY0", "other", "an engine type"),
    ("NVKMS_IOCTL_ALLOC_DEVICE", "foreign", "/dev/nvidia-modeset"),
    ("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_MESSAGE_ID", "other", "not the number of a command"),
    ("NV_EVENT_BUFFER_ALLOC_PARAMETERS_MESSAGE_ID", "other", "not the number of a command"),
    ("NV01_ALLOC_MEMORY", "other", "not the number of a call"),
    ("0xc0106d00", "foreign", "NVKMS"),
    ("_IOC(_IOC_READ|_IOC_WRITE, 0x6d, 0, 0x10)", "foreign", "NVKMS"),
    ("_IOWR('d', 0, 24)", "foreign", "/dev/dri"),
    ("_IOWR('G', 1, 16)", "foreign", "/dev/dxg"),
    ("DRM_IOCTL_VERSION", "foreign", "/dev/dri"),
    ("ioctl(3, DRM_IOCTL_VERSION, 0x7ffd) = 0", "foreign", "/dev/dri"),
    ("EINVAL", "errno", "a failed ioctl"),
    ("0x1ffffffff", "number", "33 bits"),
    ("control 0x1ffffffff", "number", "33 bits"),
    ("-1", "number", "negative"),
]


@pytest.mark.parametrize(("text", "kind", "needle"), NOT_CALLS)
def test_what_is_not_a_call_is_said_and_is_no_answer(run: Any, text: str, kind: str, needle: str) -> None:
    done = run("explain", "--", text)
    assert (done.status, done.err) == (2, "")
    assert done.out.startswith("not ")
    assert needle in done.out
    assert "admitted" not in done.out.partition("\n")[0]
    document = run("explain", "--json", "--", text).json
    assert (document["answers"], document["not_a_call"]["kind"]) == ([], kind)


@pytest.mark.parametrize(
    ("text", "status", "lines"),
    [
        ("0x3dfe", 1, ["0x3dfe can be 2 calls: a control command (refused), a class (refused)"]),
        ("0x7ff", 1, ["refused: nvproxy has no rule for UVM_IS_8_SUPPORTED (UVM command 0x7ff)"]),
        ("0x37 --kind uvm", 1, ["UVM_DISABLE_SYSTEM_WIDE_ATOMICS (UVM command 0x37)"]),
        ("0x39 --kind fe", 1, ["NV_ESC_RM_I2C_ACCESS (escape 0x39)"]),
        ("0x39 --kind frontend", 1, ["NV_ESC_RM_I2C_ACCESS (escape 0x39)"]),
        ("0x52 --kind fe", 1, ["NV_ESC_RM_GET_EVENT_DATA (escape 0x52)"]),
        ("0xd3", 1, ["NV_ESC_IOCTL_XFER_CMD (escape 0xd3)"]),
        ("0xd5", 1, ["NV_ESC_QUERY_DEVICE_INTR (escape 0xd5)"]),
        ("0xa081", 1, ["NVA081_VGPU_CONFIG (class 0xa081)"]),
        ("NV_EVENT_BUFFER", 1, ["needs profiling; the sandbox has compute,utility", "compute,utility,profiling"]),
        ("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS", 0, ["admitted: NV2080_CTRL_CMD_GPU_GET_NAME_STRING"]),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            0,
            ["is the parameters of 5 calls: TURING_CHANNEL_GPFIFO_A (admitted), AMPERE_CHANNEL_GPFIFO_A (admitted)"],
        ),
        ("0x41", 0, ["0x41 can be 3 calls", "as an NV status is NV_ERR_INVALID_STRING_LENGTH"]),
    ],
)
def test_the_answer_comes_first(run: Any, text: str, status: int, lines: list[str]) -> None:
    done = run("explain", *text.split())
    assert (done.status, done.err) == (status, "")
    assert lines[0] in done.out.partition("\n")[0], done.out
    assert all(line in done.out for line in lines)


LINES = [
    ("ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ffe12345678) = 0", "frontend", 0x2A, ""),
    (
        "[pid 12] ioctl(9</dev/nvidia-uvm<char 507:0>>, _IOC(_IOC_NONE, 0, 0x30, 0x3000), 0x7ff) = 0",
        "uvm",
        0x30000030,
        "",
    ),
    ("nvproxy: unknown control command 0x2080852f (paramsSize=8)", "control", 0x2080852F, "nvproxy refused it"),
    (
        "handler is undefined for control command 0x20801231 (paramsSize=20)",
        "control",
        0x20801231,
        "nvproxy refused it",
    ),
    (
        "W1130 10:00:00.000000       1 frontend.go:500] [   1:   1] nvproxy: missing capability for allocation class 0x000090cd",
        "alloc",
        0x90CD,
        "missing capability",
    ),
    ("missing capability for allocation class 0x000090cd", "alloc", 0x90CD, "missing capability"),
    ("kubectl-pod-1 | nvproxy: unknown uvm ioctl 55 = 0x37", "uvm", 0x37, "nvproxy refused it"),
]


@pytest.mark.parametrize(("line", "table", "number", "said"), LINES)
def test_a_pasted_line_is_taken_as_it_is(run: Any, line: str, table: str, number: int, said: str) -> None:
    document = run("explain", line, "--json").json
    (answer,) = document["answers"]
    assert (answer["kind"], answer["number"]) == (table, number)
    assert said in (document["log_says"] or "")
    assert said in run("explain", line).out


def test_a_pasted_line_without_a_call(run: Any) -> None:
    done = run("explain", 'openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR|O_CLOEXEC) = 3')
    assert (done.status, done.err) == (2, "")
    assert "an open, not an ioctl" in done.out
    done = run("explain", "ioctl(5, _IOC(_IOC_READ|_IOC_WRITE, 0x6d, 0, 0x10), 0x7ffd) = 0")
    assert done.status == 2
    assert "NVKMS" in done.out


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("0x7f", "by no driver"),
        ("0x4242", "by no driver"),
        ("0xa081", "since 525.53"),
        ("0xf9", "since 550.40.07"),
        ("0x90cd", "in all "),
    ],
)
def test_whether_any_driver_allocates_a_class(run: Any, number: str, says: str) -> None:
    done = run("explain", number, "--kind", "alloc")
    (line,) = (line for line in done.out.splitlines() if line.startswith("  allocated "))
    assert says in line, line


def test_a_refusal_says_what_to_do_and_doing_it_helps(run: Any) -> None:
    (answer,) = run("explain", "NV_EVENT_BUFFER", "--caps", "", "--json").json["answers"]
    assert answer["advice"] == ["run the sandbox with the capabilities compute,profiling"]
    assert run("explain", "NV_EVENT_BUFFER", "--caps", "compute,profiling").status == 0


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_explain_in_columns(run: Any, form: str) -> None:
    done = run("explain", "0x41", "--format", form)
    rows = list(csv.reader(done.out.splitlines(), delimiter="," if form == "csv" else "|"))
    rows = [[cell.strip() for cell in row if form == "csv" or cell.strip(" -")] for row in rows]
    assert [row[1] for row in rows if len(row) > 1] == ["number", "0x41", "0x41", "0x41"]
    assert "'=" not in done.out


def test_the_hosts_driver(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "version"
    monkeypatch.setattr(versions, "PROC", proc)
    monkeypatch.setattr(versions.host, "__defaults__", (proc,))
    _one_line(run("explain", "0x41", "--driver", "host"), "no NVIDIA driver loaded")
    proc.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build\nGCC version: 12.2.0\n"
    )
    assert run("explain", "0x41", "--driver", "host", "--json").json["driver"] == "580.126.20"
    assert run("table", "host", "--json").json["version"] == "580.126.20"


@pytest.mark.parametrize("version", ["535.129.03", "580.126.20", "620.06.00"])
def test_every_row_is_explained(run: Any, version: str) -> None:
    policy = Policy.for_driver(version, "all,profiling,rdma,fabric-imex-mgmt")
    for table in ("frontend", "uvm", "control", "alloc"):
        rules: Any = getattr(policy, table)
        for number in part(list(rules)[:: 1 if table in ("frontend", "uvm") else 7]):
            rule = rules[number]
            argv = ["explain", hex(number), "--kind", table, "--driver", version, "--json"]
            done = run(*argv, "--caps", "all,profiling,rdma,fabric-imex-mgmt")
            (answer,) = done.json["answers"]
            assert (answer["name"], answer["number"], answer["kind"]) == (rule.name, number, table)
            assert done.status == (1 if rule.rejected or rule.opt_in or is_pending(rule.later) else 0)
            of: Any = rule.params_at(policy.version)
            if of is not None:
                assert answer["params"]["size"] == of.sizeof()


@settings(max_examples=examples(100))
@given(
    st.text(max_size=40)
    | st.integers(0, 1 << 34).map(hex)
    | st.from_regex(r"_IO[CWR]{0,2}\([^)]{0,30}\)", fullmatch=True)
)
def test_any_text_is_explained_or_refused_in_one_line(text: str) -> None:
    with contextlib.suppress(SystemExit):
        found = policy_names.asked(text, None, LATEST)
        assert found.calls or found.what


def test_upstreams_function_of_every_row_is_the_one_that_nvproxy_registers() -> None:
    facts = json.loads(lzma.decompress((DATA / "nvproxy_abi.json.xz").read_bytes()))
    compared = 0
    for row in facts["rows"]:
        entry = dict(zip(facts["columns"], row, strict=True))
        for index in entry["nodes"]:
            node = TREE[facts["nodes"][index][0]]
            rule = getattr(_policy(node.name), entry["table"]).get(entry["number"])
            if rule is not None:
                assert gvisor(rule, node) == entry["handler"], f"{node} {entry['name']}"
                compared += 1
    assert compared > 13_000


_POLICIES: dict[str, Policy] = {}


def _policy(version: str) -> Policy:
    if version not in _POLICIES:
        _POLICIES[version] = Policy.for_driver(version, allow_unsupported=True)
    return _POLICIES[version]


def test_what_nvproxy_has_no_row_for_is_cited_at_its_dispatcher() -> None:
    policy = _policy("580.126.20")
    assert "no such row" in place("alloc", policy.alloc[0x7F], policy.version)
    assert "no such row" in place("control", None, policy.version)
    assert place("frontend", policy.frontend[0xD7], policy.version).endswith("rmNumaInfo")
    assert driver("control", None).startswith("src/nvidia/")


# table


@pytest.mark.parametrize("version", sampled(TREE))
def test_table_of_every_release(run: Any, version: str) -> None:
    done = run("table", version, "--json")
    assert (done.status, done.err) == (0, "")
    document = done.json
    assert document["supported"] is TREE[version].supported
    policy = Policy.for_driver(version, allow_unsupported=True)
    for table in ("frontend", "uvm", "control", "alloc"):
        numbers = [row["number"] for row in document[table]]
        assert numbers == sorted(numbers)
        refused = [row["number"] for row in document["refused"] if row["table"] == table]
        assert sorted(numbers + refused) == sorted(getattr(policy, table))


@pytest.mark.parametrize("version", ["535.104.05", "580.126.20", "620.51.00"])
def test_the_page_for_reviewers_has_every_row(run: Any, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    document = run("table", version, "--json").json
    page = run("table", version, "--format", "html").out
    assert page == run("table", version, "--format", "html").out
    assert "Made 2023-11-14 22:13 UTC by nvproxy-model" in page
    assert len(page) < 1_000_000
    page = page.replace("_<wbr>", "_")
    rows = re.findall(r'<tr data-caps="([^"]*)"><td[^>]*>(0x[0-9a-f]+)</td><th[^>]*>(\w+)</th>', page)
    tables = ("frontend", "uvm", "control", "alloc")
    expected = [
        (hex(row["number"]), row["name"], "" if row["kind"] == "reject" else " ".join(row.get("caps", ())))
        for table in tables
        for row in (*document[table], *(refused for refused in document["refused"] if refused["table"] == table))
    ]
    assert [(number, name, caps) for caps, number, name in rows] == expected
    for table in tables:
        for row in document[table]:
            assert all(name in page for name in row["structs"])


def test_the_page_for_reviewers_says_fields_privileges_and_chips(run: Any) -> None:
    page = run("table", "580.126.20", "--format", "html").out
    cells = dict(re.findall(r'<td class="mono nowrap">(0x[0-9a-f]+)</td>(.*?)</tr>', page))
    assert "any user" in cells["0x20801231"]
    assert "administrators only" in cells["0x2080030a"]
    assert "<li>40 notificationHandle NvU64 <b>" in cells["0x90cd"]
    assert "Hopper" in page


def test_table_names_the_structs_that_nvproxy_types(run: Any) -> None:
    facts = json.loads(lzma.decompress((DATA / "nvproxy_abi.json.xz").read_bytes()))
    where = {name: index for index, (name, _) in enumerate(facts["nodes"])}
    for version in ("535.104.05", "580.126.20", "620.06.00"):
        document = run("table", version, "--json").json
        ours = {
            (table, row["number"]): row for table in ("frontend", "uvm", "control", "alloc") for row in document[table]
        }
        for row in facts["rows"]:
            entry = dict(zip(facts["columns"], row, strict=True))
            if where[version] in entry["nodes"] and (entry["table"], entry["number"]) in ours:
                seen = ours[entry["table"], entry["number"]]
                assert ",".join(seen["caps"]) == entry["caps"]
                if entry["struct"]:
                    assert entry["struct"] in seen["structs"]


def test_caps_leave_what_they_admit(run: Any) -> None:
    document = run("table", "580.126.20", "--caps", "rdma", "--json").json
    assert [row["name"] for row in document["frontend"]] == ["NV_ESC_EXPORT_TO_DMABUF_FD"]
    assert document["control"] == document["alloc"] == document["uvm"] == document["refused"] == []
    every = run("table", "580.126.20", "--caps", "all,profiling,rdma,fabric-imex-mgmt", "--json").json
    assert "NV_ESC_NUMA_INFO" not in {row["name"] for row in every["frontend"]}


def test_table_diff(run: Any) -> None:
    done = run("table", "570.195.03", "--diff", "580.126.20", "--json")
    assert done.status == 1
    document = done.json
    assert (document["schema"], document["verdict"]) == ("nvproxy-policy/table-diff/1", "different")
    kinds = {(row["kind"], row["name"]) for row in document["findings"]}
    assert ("row-added", "NV2080_CTRL_CMD_GR_GET_SM_ISSUE_THROTTLE_CTRL") in kinds
    assert ("layout-changed", "FERMI_VASPACE_A") in kinds
    assert ("renamed", "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS") in kinds
    back = run("table", "580.126.20", "--diff", "570.195.03", "--json").json
    swapped = {"row-added": "row-removed", "row-removed": "row-added"}
    assert {(row["number"], swapped.get(row["kind"], row["kind"])) for row in back["findings"]} == {
        (row["number"], row["kind"]) for row in document["findings"]
    }
    same = run("table", "570.172.08", "--diff", "570.195.03")
    assert same.status == 0
    assert same.out.startswith("570.172.08 to 570.195.03: same; compared ")


# seccomp, caps


def test_seccomp(run: Any) -> None:
    document = run("seccomp", "580.126.20", "--json").json
    assert document["schema"] == "nvproxy-policy/seccomp/1"
    assert (len(document["frontend"]), len(document["uvm"])) == (18, 32)
    assert {"NV_ESC_NUMA_INFO", "NV_ESC_RM_ALLOC", "any size"} < set(document["exceptions"])
    assert "18 frontend and 32 UVM" in run("seccomp", "580.126.20").out


def test_caps(run: Any) -> None:
    done = run("caps", " compute, ,utility,compute", "--json")
    assert (done.status, done.json["caps"], done.json["mask"]) == (0, ["compute", "utility"], 17)
    assert done.json["container_flags"] == ["--compute", "--utility"]
    everything = run("caps", "all", "--json").json
    assert (everything["all"], everything["caps"]) == (True, ["compute", "graphics", "utility", "video"])
    assert run("caps", "display").status == 1
    assert run("caps", "").out == "no capability: every call is refused\n"


# conform


@pytest.fixture(scope="module")
def vectors() -> Any:
    return json.loads(lzma.decompress(VECTORS.read_bytes()))


def test_conform(run: Any) -> None:
    done = run("conform", str(VECTORS), "--json")
    assert done.status == 0
    document = done.json
    del document["produced_by"]
    assert document == {"schema": "nvproxy-policy/conform/1", "passed": 118, "failed": 0, "failures": []}


def _save(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(content) if not isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("field", ["errno", "out", "objects_added", "host"])
def test_a_changed_vector_fails(run: Any, tmp_path: Path, vectors: Any, field: str) -> None:
    content = copy.deepcopy({**vectors, "vectors": vectors["vectors"][:3]})
    vector = content["vectors"][0]
    vector[field] = {"errno": 1, "out": "ff" + vector["out"][2:], "objects_added": [], "host": []}[field]
    done = run("conform", _save(tmp_path, content), "--json")
    assert done.status == 1
    assert done.json["failures"][0]["name"] == vector["name"]


def _spoil(content: Any, how: str) -> Any:
    vector = content["vectors"][0]
    if how == "odd hex":
        vector["in"] += "0"
    elif how == "not hex":
        vector["out"] = "zz"
    elif how == "a missing field":
        del vector["objects_added"]
    elif how == "an unknown at":
        vector["host"] = [{**vector["host"][0], "answer_writes": [{"at": "elsewhere", "off": 0, "data": "00"}]}]
    elif how == "an unknown version":
        vector["version"] = "1.2.3"
    elif how == "an unknown capability":
        vector["caps"] = "computer"
    elif how == "no vectors":
        content["vectors"] = []
    elif how == "no header":
        del content["header"]
    elif how == "a list":
        return []
    elif how == "not JSON":
        return "{"
    elif how == "deep":
        return "[" * 100_000
    return content


@pytest.mark.parametrize(
    "how",
    [
        "odd hex",
        "not hex",
        "a missing field",
        "an unknown at",
        "an unknown version",
        "an unknown capability",
        "no vectors",
        "no header",
        "a list",
        "not JSON",
        "deep",
    ],
)
def test_a_file_of_something_else_is_told_in_one_line(run: Any, tmp_path: Path, vectors: Any, how: str) -> None:
    _one_line(run("conform", _save(tmp_path, _spoil(copy.deepcopy(vectors), how))))


# mistakes


def _one_line(done: Run, *needles: str) -> None:
    assert done.status == 2, done.out
    assert done.out == ""
    assert done.err.startswith("nvproxy-policy: error: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    for needle in needles:
        assert needle in done.err


@pytest.mark.parametrize(
    ("argv", "needles"),
    [
        (["explian"], ["explain"]),
        (["explain"], ["NUMBER|NAME"]),
        (["explain", ""], ["neither"]),
        (["explain", "NV_EVENT_BUFER"], ["NV_EVENT_BUFFER"]),
        (["explain", "0xzz"], ["neither"]),
        (["explain", "a\nb\x1b[31m"], ["neither"]),
        (["explain", "NV_ESC_RM_ALLOC", "--kind", "uvm"], ["it names frontend"]),
        (["explain", "0x41", "--kind", "class"], ["--kind"]),
        (["explain", "0x41", "--driver", "580.126.21"], ["580.126.20", "nearest"]),
        (["explain", "0x41", "--driver", "575.51.02"], ["not support", "--allow-unsupported"]),
        (["explain", "0x41", "--driver", "new"], ["580.126.20"]),
        (["explain", "0x41", "--caps", "cuda"], ["'cuda'", "known: "]),
        (["explain", "0x41", "--caps", "ngx"], ["ngx", "supported"]),
        (["explain", "0x41", "--profile", "soft"], ["--profile"]),
        (["table", "1.2"], ["nearest"]),
        (["table", "latest", "--diff", "620.51.00"], ["VERSION itself"]),
        (["table", "latest", "--diff", "610.57.04", "--caps", ""], ["nothing was compared"]),
        (["seccomp", "latest", "--caps", "all,x"], ["'x'"]),
        (["caps", "Compute"], ["'Compute'"]),
        (["conform", "/nonexistent/file"], ["/nonexistent/file"]),
        (["conform", str(ROOT)], ["directory"]),
    ],
)
def test_mistakes(run: Any, argv: list[str], needles: list[str]) -> None:
    _one_line(run(*argv), *needles)


@pytest.mark.parametrize("argv", [[], ["explain"], ["table"], ["conform"], ["seccomp"], ["caps"]])
def test_help_has_examples(run: Any, argv: list[str]) -> None:
    done = run(*argv, "--help")
    assert done.status == 0
    assert "examples:" in done.out
    assert "exit status:" in done.out


def test_a_closed_pipe_is_silent() -> None:
    command = f"{sys.executable} -m nvproxy_model.tools.policy table latest | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("frontend ")
    assert done.stderr == ""


def test_an_oci_profile_allows_what_the_list_allows_and_nothing_else(run: Any) -> None:
    done = run("seccomp", "580.126.20", "--caps", "all,profiling,rdma", "--format", "oci")
    profile = json.loads(done.out)["syscalls"]
    rows = run("seccomp", "580.126.20", "--caps", "all,profiling,rdma", "--json").json
    rows = rows["frontend"] + rows["uvm"]

    def allowed(request: int) -> bool:
        return any(
            entry["names"] == ["ioctl"]
            and all(
                arg["index"] == 1 and arg["op"] == "SCMP_CMP_MASKED_EQ" and request & arg["value"] == arg["valueTwo"]
                for arg in entry["args"]
            )
            for entry in profile
        )

    assert len(profile) == len(rows)
    for row in rows:
        assert allowed(row["request"])
        for bit in range(32):
            other = row["request"] ^ 1 << bit
            assert allowed(other) == any(other & r["mask"] == r["request"] & r["mask"] for r in rows)
    assert all(entry["action"] == "SCMP_ACT_ALLOW" for entry in profile)


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_tables_in_columns(run: Any, form: str) -> None:
    document = run("table", "580.126.20", "--json").json
    out = run("table", "580.126.20", "--format", form).out
    rows = sum(len(document[table]) for table in ("frontend", "uvm", "control", "alloc", "refused"))
    assert out.count("0x") == rows
    changes = run("table", "570.195.03", "--diff", "580.126.20", "--json").json["findings"]
    out = run("table", "570.195.03", "--diff", "580.126.20", "--format", form).out
    assert len(out.splitlines()) == len(changes) + (1 if form == "csv" else 2)
