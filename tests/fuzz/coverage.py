"""The driver by coverage, which needs ``pip install atheris``: ``python -m tests.fuzz.coverage TARGET [libFuzzer's options]``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["nvproxy_model", "cuinterpose"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
