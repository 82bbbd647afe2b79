"""Known findings: they do not count, they have reasons, and one that is no longer found is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.drivers.gvisor.known import KnownError, load
from nvproxy_model.tools.driver_differ import main
from tests.drivers.gvisor.gvisor_trees import write
from tests.schemas import document


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["gvisor", *arguments])
    return status, capsys.readouterr().out


def test_known_findings_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(write(tmp_path / "tree"))
    status, text = run(capsys, root, "--json")
    findings = document(text)["findings"]
    assert (status, bool(findings)) == (1, True)
    entries = [
        {"finding": f"{f['kind']} {f['name']}: {f['detail']}", "reason": "known since the beginning"} for f in findings
    ]
    path = tmp_path / "known.yaml"
    path.write_text(json.dumps([*entries, {"finding": "size-differs x: y", "reason": "gone"}]))
    status, text = run(capsys, root, "--known", str(path))
    assert status == 0
    assert f"{len(findings)} findings are known ({path})" in text
    assert f"unused entry in {path}: size-differs x: y" in text
    path.write_text(json.dumps(entries[1:]))
    status, text = run(capsys, root, "--known", str(path), "--json")
    report = document(text)
    assert (status, [f["name"] for f in report["findings"]]) == (1, [findings[0]["name"]])
    assert (len(report["known"]), report["unused"]) == (len(findings) - 1, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: 1", "want a list"),
        (b"- x", "entry 1: want"),
        (b"- {finding: a, reason: ' '}", "neither is empty"),
        (b"- {finding: 1, reason: b}", "are texts"),
        (b"- {finding: a, reason: b}\n- {finding: a, reason: c}", "stands there twice"),
        (b"- {finding: a, finding: b, reason: c}", "stands there twice"),
        (b"\xff", "YAML"),
        (b"- [", "^line 2: "),
    ],
)
def test_files_that_are_wrong(text: bytes, message: str) -> None:
    with pytest.raises(KnownError, match=message):
        load(text)


@given(st.binary(max_size=200))
def test_any_bytes(text: bytes) -> None:
    try:
        known = load(text)
    except KnownError as error:
        known, message = {}, str(error)
    else:
        message = ""
    assert all(reason.strip() for reason in known.values())
    assert "\n" not in message
