"""A model of the NVIDIA driver ABI that gVisor's nvproxy filters."""
