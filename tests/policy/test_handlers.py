"""The handler records: rows name them, a policy and a session read them, and a name that does not exist is an error."""

from __future__ import annotations

from typing import Any

import pytest

from nvproxy_model import DefinitionError, Policy, abi, versions
from nvproxy_model.fields import Fd, UserPointer
from nvproxy_model.policy import handlers, policy
from nvproxy_model.rules import Rule
from nvproxy_model.session import alloc, escapes

ROWS = [rule for rows in abi.TABLES.values() for rule in rows]


def test_a_row_that_names_a_handler_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tuple(
        rule._replace(handler="fere") if rule.name == "NV_ESC_RM_FREE" else rule for rule in abi.TABLES["frontend"]
    )
    monkeypatch.setattr(policy.abi, "TABLES", {**abi.TABLES, "frontend": wrong})
    policy._resolved.cache_clear()
    try:
        with pytest.raises(DefinitionError, match="frontend 0x29 NV_ESC_RM_FREE: no handler 'fere'"):
            Policy.for_driver("580.126.20")
    finally:
        policy._resolved.cache_clear()


def test_every_handler_is_named_by_a_row_and_does_something() -> None:
    assert set(handlers.HANDLERS) == {rule.handler for rule in ROWS if rule.handler is not None}
    session = {**escapes.HANDLERS, **{name: handler for name, handler in alloc._HANDLERS.items() if name}}
    for name in handlers.HANDLERS:
        one = session[name]
        assert one.name == name
        assert any((one.decide, one.before, one.after, one.finish, one.duty, one.inner)), name


@pytest.mark.parametrize("node", versions.load().values(), ids=str)
def test_every_row_has_its_handler(node: Any) -> None:
    for rule in ROWS:
        if rule.active(node):
            assert handlers.handler_of(rule).name == (rule.handler or "")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Fd(file="fronted"), "file='fronted'"),  # type: ignore[arg-type]
        (lambda: UserPointer(None, mode="in"), "mode='in'"),  # type: ignore[arg-type]
        (lambda: UserPointer(None, null="pass"), "null='pass'"),  # type: ignore[arg-type]
        (lambda: UserPointer(None, empty="copy"), "empty='copy'"),  # type: ignore[arg-type]
        (lambda: UserPointer(None, count=("cube", "n")), "count="),  # type: ignore[arg-type]
        (lambda: UserPointer(None, count=("square", "n", "m")), "count="),  # type: ignore[arg-type]
    ],
)
def test_a_kind_that_does_not_exist(make: Any, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        make()


def test_a_duty_is_for_admitted_calls() -> None:
    found = Policy.for_driver("580.126.20", "compute,utility")
    admitted = found.entry("frontend", 0x4E).decision
    assert admitted.duty is not None
    assert "params.length" in admitted.duty
    assert found.entry("frontend", 0xD9).decision.duty is None, "refused: no rdma"
    assert found.entry("frontend", 0x29).decision.duty is None


def test_a_rule_without_a_handler() -> None:
    rule: Rule = next(rule for rule in ROWS if rule.handler is None)
    assert handlers.handler_of(rule) is handlers.PLAIN
