"""Reports as SARIF 2.1.0, for code-scanning services.

A finding about gVisor's sources points at its line there; one about the model at the line of structs/ or nvproxy_model/abi/
that defines the name, which is where it would be mended.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from nvproxy_model import structs
from nvproxy_model.drivers.compare.findings import ADDITIVE, CLASSES, COSMETIC
from nvproxy_model.drivers.gvisor import parity as gvisor_parity
from nvproxy_model.drivers.render.text import shown

__all__ = ["SCHEMA", "locate", "render"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""The schema that the output follows."""

_FALLBACK = ("driver_versions.yaml", 1)


@dataclass(frozen=True, slots=True)
class _Result:
    rule: str
    level: str
    name: str
    message: str
    where: tuple[str, int]
    properties: Mapping[str, Any]


def render(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report of ``check``, ``diff``, ``gvisor`` or ``pin`` (as its ``--json`` states it) as a SARIF log with one run.

    Raises ValueError for a report of another schema.
    """
    results = list(_results(report))
    rules: dict[str, str] = dict([*CLASSES.items(), *gvisor_parity.KINDS.items(), *_PINS.items()])
    used = sorted({result.rule for result in results})
    unread = [_notification(item) for item in report.get("unread", ())]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "nvproxy-differ",
                        "rules": [{"id": rule, "shortDescription": {"text": rules[rule]}} for rule in used],
                    }
                },
                "invocations": [{"executionSuccessful": not unread, "toolExecutionNotifications": unread}],
                "results": [_as_json(result, used) for result in results],
            }
        ],
    }


def _as_json(result: _Result, used: list[str]) -> dict[str, Any]:
    path, line = result.where
    identity = json.dumps([result.rule, result.name, result.message])
    return {
        "ruleId": result.rule,
        "ruleIndex": used.index(result.rule),
        "level": result.level,
        "message": {"text": _plain(result.message)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": path, "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": line},
                },
                "logicalLocations": [{"fullyQualifiedName": result.name}],
            }
        ],
        "partialFingerprints": {"finding/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": dict(result.properties),
    }


def _notification(item: Mapping[str, str]) -> dict[str, Any]:
    path, line = _place(item["where"])
    return {
        "level": "error",
        "message": {"text": _plain(f"not read: {item['what']}: {item['why']}")},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": path, "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": line},
                }
            }
        ],
    }


def _results(report: Mapping[str, Any]) -> Iterator[_Result]:
    schema = report.get("schema")
    if schema == "nvproxy-differ/diff/2":
        between = f"{report['base']} to {report['next']}"
        for finding in report["findings"]:
            yield _finding(finding, between, _level(finding["class"]))
    elif schema == "nvproxy-differ/check/1":
        for release in report["releases"]:
            for finding in release["findings"]:
                yield _finding(finding, f"the model and {release['version']}", "error")
    elif schema == "nvproxy-differ/gvisor/1":
        for key, level in (("findings", "error"), ("notes", "note")):
            for finding in report[key]:
                yield _gvisor_finding(finding, level)
    elif schema == "nvproxy-differ/pin/1":
        for pin in report["pins"]:
            yield from _pin(pin, report["file"])
    else:
        raise ValueError(f"no SARIF for {schema!r}")


_PINS: Final = {
    "pin-broken": "a release does not have the value that is pinned",
    "pin-unknown": "no release has the name that is pinned",
}


def _pin(pin: Mapping[str, Any], file: str) -> Iterator[_Result]:
    name = ".".join(filter(None, (pin["name"], pin["path"])))
    properties = {key: pin[key] for key in ("what", "value", "broken", "first")}
    if pin["unknown"]:
        near = f"; did you mean {pin['near']}?" if pin["near"] else ""
        yield _Result("pin-unknown", "error", name, f"{name}: no release has it{near}", (file, 1), properties)
    elif pin["broken"]:
        first = ", ".join(f"{at['version']} ({at['actual']})" for at in pin["first"])
        message = f"{name}: {pin['what']} {pin['value']} is broken in {len(pin['broken'])} releases, first {first}"
        yield _Result("pin-broken", "error", name, message, (file, 1), properties)


def _plain(text: str) -> str:
    """Text without embedded links: brackets of names from other people's trees are escaped (SARIF 2.1.0, 3.11.6)."""
    return re.sub(r"[\\\[\]]", r"\\\g<0>", text)


def _level(class_: str) -> str:
    return "note" if class_ in COSMETIC | ADDITIVE else "error"


def _finding(finding: Mapping[str, Any], when: str, level: str) -> _Result:
    name = finding["name"]
    properties = {key: finding[key] for key in ("kind", "base", "next")}
    message = f"{name}: {finding['detail']} ({when})"
    return _Result(finding["class"], level, name, message, locate(name.partition(".")[0]), properties)


def _gvisor_finding(finding: Mapping[str, Any], level: str) -> _Result:
    versions = finding["versions"]
    when = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}, {len(versions)} versions"
    message = f"{finding['name']}: {finding['detail']} (gVisor {shown(finding['base'])}, other {shown(finding['next'])}; {when})"
    properties = {key: finding[key] for key in ("base", "next", "versions")}
    return _Result(finding["kind"], level, finding["name"], message, _place(finding["where"]), properties)


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return (path, max(1, int(line))) if path and line.isdecimal() else _FALLBACK


def locate(name: str) -> tuple[str, int]:
    """File and line where the model defines a struct, or the row of a number; driver_versions.yaml if it does neither."""
    return _definitions().get(name, _FALLBACK)


@cache
def _definitions() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    package = Path(structs.__file__).parents[1]
    for folder, printed in ((Path(structs.__file__).parent, "structs"), (package / "abi", "nvproxy_model/abi")):
        for file in sorted(folder.glob("*.py")):
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
                for name in re.findall(r'^([A-Za-z]\w+) = C|"([A-Z]\w+)"', line):
                    found.setdefault(name[0] or name[1], (f"{printed}/{file.name}", number))
    return found
