"""Request numbers, against the C preprocessor's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model import ioctl

REQUESTS = [
    "_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20)",
    "_IOC(_IOC_NONE, 0, 0x1, 0)",
    "_IOC(_IOC_WRITE, 'd', 255, 16383)",
    "_IOWR('F', 0x2b, 48)",
    "_IO('F', 0xd9)",
    "_IOR(0x46, 1, 8)",
    "_IOW('F', 200, 0x900)",
]


@pytest.mark.skipif(shutil.which("cc") is None, reason="SKIPPED, NOT PROVED: no C compiler")
def test_requests_are_the_compilers(tmp_path: Path) -> None:
    # The macros check sizes by sizeof, so the text's plain sizes go through _IOC itself.
    source = "#include <stdio.h>\n#include <sys/ioctl.h>\n"
    source += "#undef _IOC_TYPECHECK\n#define _IOC_TYPECHECK(size) (size)\n"
    source += "int main(void) {\n" + "".join(f'printf("%u\\n", (unsigned)({text}));\n' for text in REQUESTS) + "}\n"
    (tmp_path / "requests.c").write_text(source)
    subprocess.run(["cc", "-o", tmp_path / "requests", tmp_path / "requests.c"], check=True)
    printed = subprocess.run([tmp_path / "requests"], check=True, capture_output=True, text=True).stdout.split()
    assert [ioctl.parse_request(text) for text in REQUESTS] == [int(value) for value in printed]


@given(st.integers(0, 3), st.integers(0, 255), st.integers(0, 255), st.integers(0, ioctl.MAX_SIZE))
def test_a_number_is_taken_apart_as_it_was_built(direction: int, letter: int, nr: int, size: int) -> None:
    request = ioctl.encode(direction, letter, nr, size)
    assert (ioctl.magic(request), ioctl.number(request), ioctl.size(request)) == (letter, nr, size)
    assert ioctl.parse_request(hex(request)) == ioctl.parse_request(str(request)) == request
    assert ioctl.parse_request(f"_IOC({direction}, {letter:#x}, {nr}, {size:#x})") == request


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "0x1ffffffff",
        "4294967296",
        "089",
        "_IOC(1,2,3)",
        "_IOC(4, 0, 0, 0)",
        "_IOWR('F', 256, 4)",
        "_IOWR('F', 1, 16384)",
    ],
)
def test_what_is_not_a_request(text: str) -> None:
    assert ioctl.parse_request(text) is None


def test_a_struct_stands_for_its_size() -> None:
    sizes = {"NVOS54_PARAMETERS": 32}
    assert ioctl.parse_request("_IOWR('F', 0x2a, NVOS54_PARAMETERS)", sizes.get) == 0xC020462A
    assert ioctl.parse_request("_IOWR('F', 0x2a, NVOS99_PARAMETERS)", sizes.get) is None
    assert ioctl.parse_request("_IOWR('F', 0x2a, NVOS54_PARAMETERS)") is None


@given(st.text(max_size=60))
def test_any_text_is_answered(text: str) -> None:
    value = ioctl.parse_request(text)
    assert value is None or 0 <= value <= 0xFFFFFFFF
