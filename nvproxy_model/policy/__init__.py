"""Answers about bytes: what nvproxy does with a call. Nothing is kept between calls."""

from nvproxy_model.policy.decision import Copy, Decision, Verdict, Why
from nvproxy_model.policy.policy import PROFILES, Policy

__all__ = ["PROFILES", "Copy", "Decision", "Policy", "Verdict", "Why"]
