"""nvtypes.h: the scalars that are a call's whole parameters; `nvproxy_model.fields` has all of them."""

from nvproxy_model.fields import NvHandle

__all__ = ["NvHandle"]
