"""The device that these tests run on."""

from tests.opencl import pocl, quick_pocl

__all__ = ["pocl", "quick_pocl"]
