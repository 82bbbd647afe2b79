"""A CUDA shim that forwards everything and changes nothing, and the tickets by which processes will share memory.

The shim is `libcuinterpose.so`, for LD_PRELOAD; `cuinterpose.launcher` runs programs under it. `ticket`, `frame`,
`endpoint` and `coordinator` are the reference implementation of the protocol that the shim's C side speaks too.
"""
