"""Mistakes that a type checker finds. mypy and pyright read this file (tests/library/test_checkers.py); nothing runs it.

Every comment names the error that mypy must find, and mypy --strict reports a comment that hides nothing.
"""

from cuinterpose.checkpoint import Report
from cuinterpose.doctor import Reference
from nvproxy_model import File, Files, Polcy, Policy, Session  # type: ignore[attr-defined]
from nvproxy_model.abi import TABELS  # type: ignore[attr-defined]
from nvproxy_model.drivers.compare import Comparison, Finding, Findings  # type: ignore[attr-defined]
from nvproxy_model.drivers.compare.check import CheckedRelease
from nvproxy_model.drivers.compare.history import History
from nvproxy_model.drivers.gvisor import parity
from nvproxy_model.drivers.privileges import Export
from nvproxy_model.drivers.sources import open_sauce  # type: ignore[attr-defined]
from nvproxy_model.followed import Later
from nvproxy_model.live import Brokers  # type: ignore[attr-defined]
from nvproxy_model.live.tally import Refusal
from nvproxy_model.policy import Verdicts  # type: ignore[attr-defined]
from nvproxy_model.policy.seccomp import Request
from nvproxy_model.rules import Table
from nvproxy_model.session import Sessions  # type: ignore[attr-defined]
from nvproxy_model.session.ports import MapContext
from nvproxy_model.testing import FakeDriver, Memory
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.judge.check import Row
from nvproxy_model.trace.judge.verdict import Verdict

__all__ = ["TABELS", "Brokers", "Findings", "Polcy", "Sessions", "Verdicts", "open_sauce"]

File("fronted", 1042)  # type: ignore[arg-type]
File("frontend", "1042")  # type: ignore[arg-type]
MapContext(4096, "writeback")  # type: ignore[arg-type]
Files({7: 1042})  # type: ignore[arg-type]

policy = Policy.for_driver("latest", ["compute", "utility"])
Policy.for_driver("latest", {"video"})
Policy.for_driver("latest", 7)  # type: ignore[arg-type]
Policy.for_driver("latest", profile="harden")  # type: ignore[arg-type]
Policy.for_driver("latest", windows="open")  # type: ignore[arg-type]
policy.decide_alloc(0x90CD, bytes(72), {7: 1042})  # type: ignore[dict-item]
policy.decide_aloc(0x90CD, bytes(72), {})  # type: ignore[attr-defined]
print(policy.decide_alloc(0x90CD, bytes(72), {}).alowed)  # type: ignore[attr-defined]
policy.entry("controls", 0)  # type: ignore[arg-type]
table: Table = "escapes"  # type: ignore[assignment]


def words(
    *,
    comparison: Comparison,
    finding: Finding,
    history: History,
    checked: CheckedRelease,
    parity: parity.Finding,
    export: Export,
    verdict: Verdict,
    row: Row,
    record: Record,
    request: Request,
    refusal: Refusal,
    later: Later,
    reference: Reference,
    report: Report,
) -> list[bool]:
    """Comparisons with words that are never given."""
    return [
        policy.decide_control(0, None, {}).verdict.value == "rejected",  # type: ignore[comparison-overlap]
        comparison.verdict == "broken",  # type: ignore[comparison-overlap]
        finding.kind == "field-changed",  # type: ignore[comparison-overlap]
        finding.class_ == "shrunk",  # type: ignore[comparison-overlap]
        history.kind == "structure",  # type: ignore[comparison-overlap]
        checked.status == "equal",  # type: ignore[comparison-overlap]
        parity.kind == "field-changed",  # type: ignore[comparison-overlap]
        export.privilege == "root",  # type: ignore[comparison-overlap]
        verdict.word == "unsure",  # type: ignore[comparison-overlap]
        row.kind == "frontend",  # type: ignore[comparison-overlap]
        row.group == "refused",  # type: ignore[comparison-overlap]
        record.k == "read",  # type: ignore[comparison-overlap]
        record.by == "kernel",  # type: ignore[comparison-overlap]
        request.device == "control",  # type: ignore[comparison-overlap]
        refusal.by == "kernel",  # type: ignore[comparison-overlap]
        later.state == "pending",  # type: ignore[comparison-overlap]
        reference.state == "bypassed",  # type: ignore[comparison-overlap]
        report.outcome == "failed",  # type: ignore[comparison-overlap]
    ]


session = Session(policy, Memory(0, 4096), Files(), FakeDriver())
Session(policy, Memory(0, 4096), FakeDriver(), Files())  # type: ignore[arg-type]
session.ioctl(File("uvm", 3), 0, 0)  # type: ignore[arg-type]
session.munmap(3)  # type: ignore[arg-type]
