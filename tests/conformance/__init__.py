"""The ONNX backend test suite, run through ``mlc``: ``python -m tests.conformance``."""
