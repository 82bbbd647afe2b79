"""A CUDA shim that forwards everything and changes nothing, and the tickets with which processes share memory.

The shim is `libcuinterpose.so`, for LD_PRELOAD; `cuinterpose.launcher` runs programs under it, `conform` judges it and
other shims, and `doctor` looks at a running process. `ticket`, `frame`, `endpoint` and `coordinator` are the reference
implementation of a protocol that the C files in `src/` implement too.
"""
