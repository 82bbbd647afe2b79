"""YAML that people write for the commands, read within bounds: size, digits of a number, names that stand twice."""

from __future__ import annotations

from typing import Any, TypeVar

import yaml

from nvproxy_model.errors import NvproxyError

__all__ = ["MAX_FILE", "described", "parse"]

MAX_FILE = 1 << 20
"""Bytes of a file."""
MAX_DIGITS = 80
"""Characters of a number: 64 bits in binary, with their prefix and separators."""

E = TypeVar("E", bound=NvproxyError)


class _Twice(ValueError):
    """A key that is not a name, or that stands twice in one mapping."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's own loader keeps the last of two equal keys; here that is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if isinstance(key, str) and keys.count(key) > 1} if len(keys) < 2000 else set()
        if twice or any(not isinstance(key, str) for key in keys):
            what = f"{min(twice)} stands there twice" if twice else "a key is not a name"
            raise _Twice(f"line {node.start_mark.line + 1}: {what}")
        if len(set(keys)) != len(keys):
            raise _Twice(f"line {node.start_mark.line + 1}: a name stands there twice")
        return dict(super().construct_mapping(node, deep))


def _integer(loader: Any, node: Any) -> Any:
    """YAML 1.1 reads 1:30 as 90, in quadratic time; nobody means that here, so such a word stays text and is refused."""
    return node.value if ":" in node.value or len(node.value) > MAX_DIGITS else loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def parse(text: bytes, error: type[E]) -> Any:
    """The file's data. Raises ``error`` with one line that says what is wrong with it."""
    if len(text) > MAX_FILE:
        raise error(f"over {MAX_FILE >> 20} MiB")
    try:
        return yaml.load(text, _Loader)
    except _Twice as problem:
        raise error(str(problem)) from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        why = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "no text"
        raise error(f"{where}not YAML: {why}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as problem:
        raise error(f"not YAML: {str(problem).splitlines()[0]}") from None


def described(value: Any) -> str:
    """A value in a message. Of a list or mapping only what it is: aliases can make its text larger than any memory."""
    if isinstance(value, int):
        return "a number of more than 64 bits" if value.bit_length() > 64 else repr(value)
    if isinstance(value, (dict, list, set, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.40}"
