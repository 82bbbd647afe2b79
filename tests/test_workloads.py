"""docs/workloads.md is what the traces and the tables say today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tests import ROOT


def module() -> Any:
    spec = importlib.util.spec_from_file_location("workloads", ROOT / "benchmarks" / "workloads.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_page_is_up_to_date() -> None:
    workloads = module()
    assert Path(workloads.PAGE).read_text() == "\n".join(workloads.page()) + "\n", (
        "python3 -m benchmarks.workloads --write"
    )


def test_every_trace_is_on_the_page() -> None:
    workloads = module()
    named = {name for names in workloads.PROGRAMS.values() for name in names}
    assert named == {path.name.split(".")[0] for path in workloads.TRACES.iterdir()}
