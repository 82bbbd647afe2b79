"""What nvproxy interprets and what it passes on: the scopes, and that they give one answer on both ways to ask."""

from __future__ import annotations

import pytest

from nvproxy_model import versions
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare.check import check_release, model_release
from nvproxy_model.drivers.compare.findings import CLASSES
from nvproxy_model.drivers.compare.scope import GAINED, compare_scoped, scope_at
from nvproxy_model.layout import Field
from tests.effort import sampled

FACTS = facts.load()


def _unlisted() -> list[tuple[str, str]]:
    pairs = ((model_release(version, FACTS.parent), version) for version in FACTS.versions)
    return [
        (base, version) for base, version in pairs if base is not None and base != version and base in FACTS.versions
    ]


@pytest.mark.parametrize(("base", "version"), sampled(_unlisted()))
def test_a_release_differs_from_the_model_where_it_differs_from_its_ancestor(base: str, version: str) -> None:
    release = FACTS.release(version)
    checked = check_release(release, base)
    scoped = compare_scoped(FACTS.release(base), release, base)
    assert (checked.status == "different") == (scoped.verdict not in ("none", "cosmetic"))
    assert {finding.name for finding in checked.findings} == {finding.name for finding in scoped.deciding}


def test_the_scopes_share_no_struct() -> None:
    for version in [None, *versions.load()]:
        scope = scope_at(version)
        assert scope.interpreted
        assert scope.passed_on
        assert not scope.interpreted & scope.passed_on


@pytest.mark.parametrize(
    ("field", "class_"),
    [
        (Field("ctlFd", 0, 4, "NvS32", "s32"), "fd-gained"),
        (Field("pList", 0, 8, "NvP64", "ptr"), "pointer-gained"),
        (Field("processId", 0, 4, "NvU32", "u32"), "pid-gained"),
        (Field("count", 0, 4, "NvU32", "u32"), None),
    ],
)
def test_what_a_passed_on_struct_gains_decides(field: Field, class_: str | None) -> None:
    base = FACTS.release("570.195.03")
    name = "NV2080_CTRL_GPU_GET_SIMULATION_INFO_PARAMS"
    assert name in scope_at("570.195.03").passed_on
    layout = base.structs[name]
    field = field._replace(offset=layout.size)
    grown = layout._replace(size=layout.size + 8, fields=(*layout.fields, field))
    following = base._replace(version="570.999", structs={**base.structs, name: grown})
    scoped = compare_scoped(base, following, "570.195.03")
    assert scoped.by_scope["passed on"]
    deciding = {finding.class_ for finding in scoped.deciding}
    assert deciding == ({class_} if class_ else set())
    assert deciding <= set(GAINED)
    assert (scoped.verdict == "breaking") == (class_ is not None)
    assert (check_release(following, "570.195.03").status == "different") == (class_ is not None)


@pytest.mark.parametrize("everything", [False, True])
def test_the_counts_by_scope_add_up(everything: bool) -> None:
    base, following = FACTS.release("570.195.03"), FACTS.release("580.105.08")
    scoped = compare_scoped(base, following, "570.195.03", everything=everything)
    counts = scoped.counts()
    parts = counts["by_scope"]
    for what in ("structs", "constants"):
        assert sum(part[what] for part in parts.values()) == counts[what]
    scope = scope_at("570.195.03")
    there = base.structs.keys() | following.structs.keys()
    assert parts["interpreted"]["structs"] == sum(name in scope.interpreted for name in there)
    assert parts["passed on"] == {"structs": sum(name in scope.passed_on for name in there), "constants": 0}
    assert (parts["other"]["structs"] > 0) == everything
    assert (parts["other"]["constants"] > 0) == everything
    # All of them are in the order of names, structs first, whatever scope they are of.
    names = [finding.name for finding in scoped.findings if finding.struct is None]
    assert len({scoped.scope.of(finding) for finding in scoped.findings if finding.struct is None}) == 1 + everything
    assert names == sorted(names)
    structs = [finding.struct for finding in scoped.findings if finding.struct is not None]
    assert structs == sorted(structs)
    assert [finding.struct is None for finding in scoped.findings] == [False] * len(structs) + [True] * len(names)
    assert not set(scoped.deciding) & set(scoped.rest)
    assert sorted(map(repr, (*scoped.deciding, *scoped.rest))) == sorted(map(repr, scoped.findings))
    assert scoped.rest
    ranks = [list(CLASSES).index(finding.class_) for finding in scoped.rest]
    assert ranks == sorted(ranks)


def test_names_that_no_row_uses_are_compared_only_where_asked_for() -> None:
    base = FACTS.release("570.195.03")
    assert compare_scoped(base, base, "570.195.03").counts()["by_scope"]["other"] == {"structs": 0, "constants": 0}


def test_what_a_passed_on_struct_gains_decides_for_all_releases_together() -> None:
    base = FACTS.release("570.195.03")
    name = "NV2080_CTRL_GPU_GET_SIMULATION_INFO_PARAMS"
    layout = base.structs[name]
    pid = Field("processId", layout.size, 4, "NvU32", "u32")
    grown = layout._replace(size=layout.size + 8, fields=(*layout.fields, pid))
    following = base._replace(version="570.999", structs={**base.structs, name: grown})
    scoped = compare_scoped(base, following, None)
    assert [(finding.name, finding.class_) for finding in scoped.deciding] == [(f"{name}.processId", "pid-gained")]


def test_a_source_is_asked_for_both_scopes() -> None:
    wanted = scope_at("570.195.03").wanted
    assert "NVOS54_PARAMETERS" in wanted.structs
    assert "NV2080_CTRL_GPU_GET_SIMULATION_INFO_PARAMS" in wanted.structs
    assert "NV_ESC_RM_CONTROL" in wanted.constants
