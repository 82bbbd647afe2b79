"""NVIDIA's structs, one module a header, with what their fields mean to a proxy.

Rows and handlers name a struct with its module, as ``"nvos.NVOS54_PARAMETERS"``: `named` imports it when it is first needed.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct, CUnion, Scalar

__all__ = ["HEADERS", "every", "home", "named"]

HEADERS = (
    "alloc_channel",
    "cl0005",
    "cl0070",
    "cl0080",
    "cl00da",
    "cl00de",
    "cl00e0",
    "cl00f1",
    "cl00f8",
    "cl00fb",
    "cl00fd",
    "cl00fe",
    "cl2080",
    "cl2081",
    "cl503b",
    "cl503c",
    "cl83de",
    "cl9072",
    "cl90cd",
    "cla0bc",
    "clb0b5sw",
    "clb1cc",
    "clb2cc",
    "clcb33",
    "ctrl0000gpu",
    "ctrl0000system",
    "ctrl0000unix",
    "ctrl0041",
    "ctrl0080fb",
    "ctrl0080fifo",
    "ctrl0080gpu",
    "ctrl0080gr",
    "ctrl0080msenc",
    "ctrl00fd",
    "ctrl2080bios",
    "ctrl2080bus",
    "ctrl2080event",
    "ctrl2080fb",
    "ctrl2080fifo",
    "ctrl2080gpu",
    "ctrl2080gr",
    "ctrl2080nvlink",
    "ctrl208fgpu",
    "ctrl503c",
    "ctrl83dedebug",
    "ctrl90cd",
    "ctrlxxxx",
    "nvCpuUuid",
    "nv_ioctl",
    "nv_unix_nvos_params_wrappers",
    "nvos",
    "nvstatus",
    "nvstatuscodes",
    "nvtypes",
    "rs_access",
    "uvm_ioctl",
    "uvm_linux_ioctl",
    "uvm_types",
)
"""The modules, sorted."""


@functools.cache
def named(place: str) -> Any:
    """The CStruct, CUnion or Scalar that a module defines, by both their names. Raises DefinitionError if it has none."""
    header, _, name = place.rpartition(".")
    found = getattr(import_module(f"{__name__}.{header}"), name, None) if header in HEADERS else None
    if not isinstance(found, (CStruct, CUnion, Scalar)):
        raise DefinitionError(f"{place}: nvproxy_model/structs has no such struct")
    return found


@functools.cache
def every() -> tuple[CStruct | CUnion, ...]:
    """Every record that NVIDIA names, by module, in the order of its header. Imports the modules on the first call."""
    modules = [import_module(f"{__name__}.{header}") for header in HEADERS]
    found = {
        value.ctype: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, (CStruct, CUnion)) and value.ctype
    }
    return tuple(found.values())


@functools.cache
def home(name: str) -> str | None:
    """The module that defines a record under one of its names, as a path in the repository; None for another record."""
    for header in HEADERS:
        for value in vars(import_module(f"{__name__}.{header}")).values():
            if isinstance(value, (CStruct, CUnion)) and name in value.ctypes:
                return f"structs/{header}.py"
    return None
