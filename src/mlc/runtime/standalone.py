"""Runs the model of this package with Python and numpy alone: a copy of this file is the package's examples/main.py.

    tar xf module.tar -C package
    python3 package/examples/main.py inputs.npz outputs.npz [--threads N]

inputs.npz holds an array for each input, by its name; inputs without one are zeros. Elements of bf16 are given and
written by their bits, as uint16.
"""

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "bool": "bool",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int8", "i2": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint8", "u2": "uint8",
}  # fmt: skip


class Model:
    """The model of a package that was unpacked.

    Args:
        folder: where it was unpacked.
        threads: that run it.
    Raises:
        ValueError: the package has no shared library, or needs a device, which mlc itself has to drive.
        OSError: a file of it is missing, or the library does not fit this machine.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        facts = json.loads((folder / "module.json").read_text())
        if facts.get("device") is not None:
            raise ValueError("parts of the model run on a device, which mlc drives: use mlc run")
        if not facts.get("module_so"):
            raise ValueError(
                "the package has no lib/model.so: link lib/model.o on this machine, or compile with a linker"
            )
        self.inputs, self.outputs = (
            {p["name"]: (tuple(p["shape"]), np.dtype(_TYPES[p["dtype"]])) for p in facts[ports]}
            for ports in ("inputs", "outputs")
        )
        memory = facts["memory"]
        self._alignment = memory["alignment"]
        library = ctypes.CDLL(str((folder / facts["module_so"]).resolve()))
        self._run = getattr(library, f"{facts['symbols']}_run")
        self._run.restype, self._run.argtypes = ctypes.c_int32, [ctypes.c_void_p] * 5
        create = getattr(library, f"{facts['symbols']}_pool_create")
        create.restype, create.argtypes = ctypes.c_void_p, [ctypes.c_int32]
        self._pool = create(threads) if threads > 1 else None
        raw = np.fromfile(folder / "params.safetensors", np.uint8)
        begin = 8 + int.from_bytes(raw[:8].tobytes(), "little")
        self._params = self._aligned(memory["params_bytes"])
        self._params[: raw.size - begin] = raw[begin:]
        self._workspace = self._aligned(memory["workspace_bytes"])

    def __call__(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name.

        Args:
            given: arrays by the names of inputs; those that are missing are zeros.
        Raises:
            ValueError: an array is of no input, or has another shape or type than its input.
        """
        for name, a in given.items():
            if name not in self.inputs:
                raise ValueError(f"no input {name!r}; there are {', '.join(self.inputs)}")
            if (a.shape, a.dtype) != self.inputs[name]:
                shape, dtype = self.inputs[name]
                raise ValueError(f"input {name!r} is {a.dtype}{list(a.shape)}, the model takes {dtype}{list(shape)}")
        ports = [self._port(*spec) for spec in (*self.inputs.values(), *self.outputs.values())]
        for (name, _), port in zip(self.inputs.items(), ports, strict=False):
            if name in given:
                port[...] = given[name]
        count = len(self.inputs)
        ins, outs = (
            (ctypes.c_void_p * max(1, len(some)))(*(a.ctypes.data for a in some))
            for some in (ports[:count], ports[count:])
        )
        status = self._run(ins, outs, self._params.ctypes.data, self._workspace.ctypes.data, self._pool)
        if status != 0:
            raise ValueError(f"the model ended with status {status}")
        return dict(zip(self.outputs, ports[count:], strict=True))

    def _aligned(self, nbytes: int) -> np.ndarray:
        """Zeroed bytes that begin at a multiple of what the model's memory must; at least one."""
        whole = np.zeros(max(1, nbytes) + self._alignment, np.uint8)
        skip = -whole.ctypes.data % self._alignment
        return whole[skip : skip + max(1, nbytes)]

    def _port(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64))
        return self._aligned(size * dtype.itemsize)[: size * dtype.itemsize].view(dtype).reshape(shape)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Runs the model of this package with Python and numpy alone.")
    parser.add_argument("inputs", metavar="INPUTS.npz", help="arrays by the names of inputs; missing ones are zeros")
    parser.add_argument("outputs", metavar="OUTPUTS.npz", help="the file to write")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads that run the model (1)")
    options = parser.parse_args()
    try:
        model = Model(Path(__file__).resolve().parents[1], options.threads)
        with np.load(options.inputs) as file:
            made: dict[str, Any] = model({name: file[name] for name in file.files})
        np.savez(options.outputs, **made)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
