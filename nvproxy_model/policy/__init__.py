"""Answers about bytes: what nvproxy does with a call. Nothing is kept between calls."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.policy.decision import Copy, Decision, Verdict, Why
    from nvproxy_model.policy.policy import PROFILES, Policy
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "decision": (
                "Copy",
                "Decision",
                "Verdict",
                "Why",
            ),
            "policy": (
                "PROFILES",
                "Policy",
            ),
        },
    )

__all__ = ["PROFILES", "Copy", "Decision", "Policy", "Verdict", "Why"]
