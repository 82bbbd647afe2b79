"""A policy in fifteen lines: what becomes of one allocation, under two sets of capabilities."""

from __future__ import annotations

from nvproxy_model import File, Policy
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS

fds = {7: File("frontend", host_fd=1042)}
params = NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(notificationHandle=7, hBufferHeader=0xCAF00006)

for caps in ("compute,utility", "compute,utility,profiling"):
    policy = Policy.for_driver("580.126.20", caps)
    decision = policy.decide_alloc(0x90CD, params, fds)
    print(decision.verdict.value, "-", decision.reason)
    if decision.params is not None:
        print(
            "the host's notificationHandle:",
            NV_EVENT_BUFFER_ALLOC_PARAMETERS.read(decision.params)["notificationHandle"],
        )
