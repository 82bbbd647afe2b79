"""``python tests/trace/fuzz_atheris.py NAME [-max_total_time=60 -timeout=10] [CORPUS]``: fuzzing by coverage.

Needs ``pip install atheris``. NAME is a target of fuzz.py; the limits on time and memory are libFuzzer's.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["nvproxy_model.trace"]):
    from tests.trace.fuzz import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
