"""The target ``cuda``: kernels as CUDA C, their compilation by NVRTC, and the driver that runs them."""
