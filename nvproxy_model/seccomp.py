"""The host-side allow list, under the name that embedders import; it lives in `nvproxy_model.policy.seccomp`."""

from nvproxy_model.policy.seccomp import EXCEPTIONS, MAPPING, Request, allow_list

__all__ = ["EXCEPTIONS", "MAPPING", "Request", "allow_list"]
