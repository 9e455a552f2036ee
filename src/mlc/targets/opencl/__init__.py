"""The target ``opencl``: kernels as OpenCL C, and the driver that runs them."""
