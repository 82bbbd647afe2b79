"""What nvproxy-policy's subcommands share: the policy that is asked for, and a row in a few words."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nvproxy_model import caps as capabilities
from nvproxy_model import versions
from nvproxy_model.caps import Caps
from nvproxy_model.errors import NvproxyError, UnsupportedDriverVersion
from nvproxy_model.tools.command import fail
from nvproxy_model.versions import DriverVersion

if TYPE_CHECKING:
    from nvproxy_model.policy.policy import Policy
    from nvproxy_model.rules import Rule

__all__ = ["ADMITTED", "REFUSED", "caps_of", "handled", "node_of", "policy_of", "structs"]

ADMITTED, REFUSED = 0, 1
"""Exit statuses, beside UNKNOWN."""


def caps_of(text: str) -> Caps:
    """The set that a list of names gives; a mistake ends the command."""
    try:
        return capabilities.resolve(text)
    except ValueError as error:
        fail(f"--caps: {error}")


def node_of(text: str, *, allow_unsupported: bool) -> DriverVersion:
    """The release of that name. One that is unknown or not supported ends the command with the way out."""
    try:
        return versions.load().find(text, allow_unsupported=allow_unsupported)
    except UnsupportedDriverVersion:
        branch = f"{text.partition('.')[0]}."
        supported = [node.name for node in versions.load().values() if node.supported and node.name.startswith(branch)]
        near = f"; supported: {', '.join(supported)}" if supported else ""
        fail(f"driver {text}: known, but nvproxy does not support it{near}, or --allow-unsupported")
    except NvproxyError as error:
        fail(str(error))


def policy_of(args: argparse.Namespace, *, extra: Iterable[int] = ()) -> Policy:
    """The policy that ``--driver``, ``--caps`` and ``--profile`` ask for."""
    from nvproxy_model.policy.policy import Policy

    node = node_of(args.driver, allow_unsupported=args.allow_unsupported)
    return Policy.for_driver(
        node.name,
        caps_of(args.caps),
        profile=args.profile,
        allow_unsupported=True,
        extra=extra,
        pending=getattr(args, "pending", False),
    )


def structs(rule: Rule, version: DriverVersion) -> list[str]:
    """The names of the structs of a row at a release. An array of plain numbers has none."""
    if rule.name == "NV_ESC_RM_ALLOC":
        return ["NVOS21_PARAMETERS", "NVOS64_PARAMETERS"]  # the two forms of its argument
    name = rule.struct_at(version)
    return [] if name is None or name == "NvU32" else [name]


def handled(rule: Rule, version: DriverVersion) -> str:
    """How a row is handled: ``simple``, or what its struct's roles and its handler ask for, joined by ``+``."""
    from nvproxy_model.fields import CStruct
    from nvproxy_model.policy.plan import plan

    if rule.rejected:
        return "reject"
    if rule.opt_in:
        return "opt-in"
    parts = []
    of = rule.params_at(version)
    if isinstance(of, CStruct):
        what = plan(of)
        parts += ["fd"] * bool(what.fds) + ["buffer"] * bool(what.pointers) + ["depends"] * bool(what.depends)
    if rule.handler is not None:
        parts.append(rule.handler)
    return "+".join(parts) or "simple"
