"""Markdown and SARIF of every report that has them, made by the commands themselves."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sarif_pydantic
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.gvisor.parity import KINDS, NOTES
from nvproxy_model.drivers.render import markdown, sarif
from nvproxy_model.tools.driver_differ import main
from tests import ROOT
from tests.drivers.gvisor.gvisor_trees import MODERN, write


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) in (0, 1, 2)
    return capsys.readouterr().out


@pytest.fixture
def reports(tmp_path: Path) -> dict[str, list[str]]:
    """Name -> the command that gives such a report."""
    return {
        "diff": ["diff", "580.105.08", "590.44.01"],
        "additive": ["diff", "570.195.03", "570.211.01"],
        "check": ["check", "580.105.08", "580.173.02"],
        "gvisor": ["gvisor", str(write(tmp_path / "gvisor"))],
        "unread": ["gvisor", str(write(tmp_path / "unread", MODERN.replace("// CHANGES", "for {\n}")))],
        "model": ["gvisor", str(write(tmp_path / "model")), "--against", "model"],
    }


NAMES = ["diff", "additive", "check", "gvisor", "unread", "model"]


def validate(log: Any) -> sarif_pydantic.Sarif:
    """SARIF's types by sarif-pydantic, and what it lets pass: unknown properties, ids without a rule, lines below 1."""
    model = sarif_pydantic.Sarif.model_validate(log)
    assert log["version"] == "2.1.0"
    unknown = [name for part in parts(model) for name in part.model_extra or {}]
    assert not set(unknown) - {"toolExecutionNotifications"}, unknown
    for run in model.runs:
        rules = [rule.id for rule in run.tool.driver.rules or []]
        assert len(rules) == len(set(rules))
        for result in run.results or []:
            assert result.rule_index is not None
            assert rules[result.rule_index] == result.rule_id
            assert result.message.text
            for location in result.locations or []:
                assert location.physical_location is not None
                region, artifact = location.physical_location.region, location.physical_location.artifact_location
                assert region is not None
                assert artifact is not None
                assert (region.start_line or 0) >= 1
                assert re.fullmatch(r"[\w./-]+", artifact.uri or "")
    return model


def parts(model: BaseModel) -> Iterator[BaseModel]:
    yield model
    for value in dict(model).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                yield from parts(item)


@pytest.mark.parametrize("name", NAMES)
def test_sarif(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str], name: str) -> None:
    log = json.loads(output(capsys, *reports[name], "--format", "sarif"))
    model = validate(log)
    report = json.loads(output(capsys, *reports[name], "--json"))
    expected = [f for release in report.get("releases", [report]) for f in release["findings"]] + report.get(
        "notes", []
    )
    results = model.runs[0].results or []
    assert len(results) == len(expected)
    assert [result.rule_id for result in results] == [f.get("class", f["kind"]) for f in expected]
    prints = [json.dumps(result["partialFingerprints"]) for result in log["runs"][0]["results"]]
    assert len(set(prints)) == len(prints)
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is (not report.get("unread"))


def test_names_from_other_trees_make_no_link() -> None:
    name = "[click](javascript:alert(1))"
    finding = {"kind": "struct-added", "name": name, "detail": "\\x", "base": None, "next": 1, "class": "added"}
    log = sarif.render({"schema": "nvproxy-differ/diff/2", "base": name, "next": "b", "findings": [finding]})
    text = log["runs"][0]["results"][0]["message"]["text"]
    assert not re.search(r"(?<!\\)\[", text)
    assert "\\[click\\](javascript" in text


def test_levels(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    log = json.loads(output(capsys, *reports["diff"], "--format", "sarif"))
    levels = {(result["ruleId"], result["level"]) for result in log["runs"][0]["results"]}
    assert ("moved-same-size", "error") in levels
    assert ("added", "note") in levels
    log = json.loads(output(capsys, *reports["gvisor"], "--format", "sarif"))
    assert {(r["ruleId"], r["level"]) for r in log["runs"][0]["results"]} == {
        ("union-member-differs", "error"),
        ("number-unnamed", "note"),
    }


def test_what_was_not_read_is_a_notification(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    log = json.loads(output(capsys, *reports["unread"], "--format", "sarif"))
    (notification,) = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert "for_statement" in notification["message"]["text"]
    assert (
        notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        == "pkg/sentry/devices/nvproxy/version.go"
    )


def test_a_finding_points_at_the_line_to_mend(
    reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    log = json.loads(output(capsys, *reports["diff"], "--format", "sarif"))
    for result in log["runs"][0]["results"]:
        place = result["locations"][0]["physicalLocation"]
        name = result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"].partition(".")[0]
        line = (ROOT / place["artifactLocation"]["uri"]).read_text().splitlines()[place["region"]["startLine"] - 1]
        assert name in line or place["artifactLocation"]["uri"] == "driver_versions.yaml"
    log = json.loads(output(capsys, *reports["gvisor"], "--format", "sarif"))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    source = (Path(reports["gvisor"][1]) / place["artifactLocation"]["uri"]).read_text().splitlines()
    assert "type NVOS32AllocSize struct" in source[place["region"]["startLine"] - 1]


def _without(path: str) -> Any:
    def corrupt(log: Any) -> None:
        *above, last = path.split(".")
        at = log
        for step in above:
            at = at[int(step)] if step.isdigit() else at[step]
        del at[last]

    return corrupt


def _with(path: str, value: Any) -> Any:
    def corrupt(log: Any) -> None:
        *above, last = path.split(".")
        at = log
        for step in above:
            at = at[int(step)] if step.isdigit() else at[step]
        at[last] = value

    return corrupt


@pytest.mark.parametrize(
    "corrupt",
    [
        _without("version"),
        _without("runs"),
        _without("runs.0.tool"),
        _without("runs.0.tool.driver.name"),
        _without("runs.0.results.0.message"),
        _without("runs.0.results.0.ruleIndex"),
        _with("version", "2.0.0"),
        _with("runs.0.results.0.level", "fatal"),
        _with("runs.0.results.0.ruleId", 5),
        _with("runs.0.results.0.ruleIndex", 999),
        _with("runs.0.results.0.rulId", "x"),
        _with("runs.0.results.0.locations.0.physicalLocation.region.startLine", 0),
        _with("runs.0.results.0.locations.0.physicalLocation.region.startLine", "one"),
        _with("runs.0.results.0.locations.0.physicalLocation.artifactLocation.uri", "a b\\c"),
        _with("runs.0.invocations.0.executionSuccessful", "perhaps"),
    ],
)
def test_a_corrupted_log_fails(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str], corrupt: Any) -> None:
    log = json.loads(output(capsys, *reports["gvisor"], "--format", "sarif"))
    validate(log)
    broken = copy.deepcopy(log)
    corrupt(broken)
    with pytest.raises((ValidationError, AssertionError, KeyError, IndexError)):
        validate(broken)


@pytest.mark.parametrize("render", [sarif.render, markdown.render])
def test_a_report_of_another_kind_is_refused(render: Any) -> None:
    with pytest.raises(ValueError, match="nvproxy-differ/other/1"):
        render({"schema": "nvproxy-differ/other/1"})


# Markdown.


@pytest.mark.parametrize("name", NAMES)
def test_markdown(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = output(capsys, *reports[name], "--format", "markdown")
    report = json.loads(output(capsys, *reports[name], "--json"))
    assert text.startswith("### ")
    assert len(text) < 65_536
    table = [line for line in text.splitlines() if line.startswith("|")]
    findings = [finding for release in report.get("releases", [report]) for finding in release["findings"]]
    cut = re.search(r"^(\d+) more findings; `--json` has them all\.$", text, re.MULTILINE)
    left = int(cut[1]) if cut else 0
    assert len(table) + left == (len(findings) + 2 if findings else 0)  # the head and the rule
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert len(widths) <= 1


def test_markdown_says_what_matters(reports: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, *reports["diff"], "--format", "markdown")
    assert "### `580.105.08` to `590.44.01`: breaking" in text
    assert "`NV00FD_ALLOCATION_PARAMETERS.allocFlags`" in text
    text = output(capsys, *reports["check"], "--format", "markdown")
    assert f"Not checkable (not in our facts, which are of {facts.AS_OF}): `580.173.02`." in text
    text = output(capsys, *reports["unread"], "--format", "markdown")
    assert "not read: `pkg/sentry/devices/nvproxy/version.go:" in text


def _report(count: int, name: str = "S.f", detail: str = "x") -> dict[str, Any]:
    finding = {"kind": "field-moved", "name": name, "detail": detail, "base": 0, "next": 4, "class": "moved"}
    return {
        "schema": "nvproxy-differ/diff/2",
        "base": "1.0",
        "next": "2.0",
        "verdict": "different",
        "change": "breaking",
        "compared": {"headers": 1, "structs": 1, "constants": 0},
        "findings": [finding] * count,
    }


def test_a_long_report_fits_a_comment_and_says_what_it_left_out() -> None:
    text = markdown.render(_report(5000))
    assert len(text) < 65_536
    shown = text.count("| moved |")
    assert f"{5000 - shown} more findings" in text


HOSTILE = [
    "`a`",
    "a|b",
    "<script>",
    "a\nb",
    "@everyone",
    "[x](http://e.org)",
    "![](x)",
    "\u202eabc",
    "**b**",
    "a\\",
    "https://e.org",
    "#1",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_other_peoples_trees_are_text(name: str) -> None:
    text = markdown.render(_report(1, name, name))
    row = text.splitlines()[-1]
    assert row.startswith("| moved | ")
    assert len(re.findall(r"\|", row)) == 4
    body = re.sub(r"`[^`]*`", "", row)
    assert not re.search(r"[`*<\[!@\\](?!code>|/code>)|://|\u202e", body.replace("<code>", "").replace("</code>", ""))


@given(st.text(max_size=40))
def test_any_text_stays_in_its_cell(text: str) -> None:
    row = markdown.render(_report(1, text, text)).splitlines()
    assert len([line for line in row if line.startswith("|")]) == 3
    assert row[-1].count("|") == 4


def test_a_workflow_example_is_yaml_with_the_commands_that_exist() -> None:
    import yaml

    text = (ROOT / "docs" / "parity-workflow.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "jobs:" in block]
    assert len(blocks) == 3
    commands = []
    for block in blocks:
        workflow = yaml.safe_load(block)
        for job in workflow.get("jobs", {}).values():
            commands += [line.strip() for step in job["steps"] for line in step.get("run", "").splitlines()]
    used = [re.sub(r"\\$", "", command).split() for command in commands if command.startswith("nvproxy-differ ")]
    assert {words[1] for words in used} == {"check", "gvisor", "pin"}
    for words in used:
        with pytest.raises(SystemExit) as ended:
            main([words[1], "--help"])
        assert ended.value.code == 0


def test_the_docs_explain_every_kind_and_a_pin_file_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "parity-workflow.md").read_text()
    told = {
        kind: (sort, meaning)
        for kind, sort, meaning in re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    }
    assert told == {kind: ("note" if kind in NOTES else "finding", meaning) for kind, meaning in KINDS.items()}
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith("pin:")]
    file = tmp_path / "pins.yaml"
    file.write_text(block)
    assert main(["pin", str(file), "--since", "570.86.15", "--branch", "570"]) == 0
    assert "verdict: same" in capsys.readouterr().out
