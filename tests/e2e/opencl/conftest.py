"""The device that these tests run on."""

from tests.opencl import pocl

__all__ = ["pocl"]
