"""A module run on a board: what is sent for it, and the process there that runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.errors import DocumentError, MlcError
from mlc.fields import Fields, as_integers, as_list, as_text, as_whole
from mlc.pool.offers import Kind
from mlc.pool.parcel import Parcel
from mlc.pool.processes import received
from mlc.runtime import emulate_module, load_module
from mlc.runtime.dtypes import ELEMENTS, numpy_dtype
from mlc.tuning.measure.frames import Channel
from mlc.tuning.measure.zygote import Shared

_MOST = 4096  # arrays of a model
_IN_MEMORY = "/proc/self/fd/"


@dataclass(frozen=True)
class RunJob:
    """A module to run once.

    Args:
        family: of its target: ``x86``.
        module: the ``module.tar``.
        feeds: its inputs.
        seed: of what the model draws at random.
        threads: that run it; as many as the board has where that is 0.
        client: whose it is.
    """

    family: str
    module: bytes
    feeds: Mapping[str, np.ndarray]
    seed: int = 0
    threads: int = 0
    client: str = ""

    def parcel(self) -> Parcel:
        specs, parts = arrays_to_json(self.feeds)
        header = {
            "family": self.family, "seed": self.seed, "threads": self.threads, "client": self.client, "feeds": specs
        }  # fmt: skip
        return Parcel(Kind.RUN, header, (self.module, *parts))

    @classmethod
    def of(cls, parcel: Parcel) -> RunJob:
        """The job in a parcel.

        Raises:
            DocumentError: there is none.
        """
        if not parcel.parts:
            raise DocumentError("a run without a module")
        get = Fields(parcel.header, "")
        family = get.take("family", as_text)
        seed, threads = get.take("seed", as_whole(0, (1 << 64) - 1)), get.take("threads", as_whole(0, 1024))
        client = get.take("client", as_text)[:100]
        feeds = arrays_from_json(get.take("feeds", lambda item, _: item), parcel.parts[1:])
        get.end()
        return cls(family, parcel.parts[0], feeds, seed, threads, client)


def arrays_to_json(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Names, types and shapes, and the elements of each in order."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    specs = [
        {"name": n, "dtype": str(a.dtype), "shape": list(arrays[n].shape)} for n, a in whole.items()
    ]  # a scalar has no axes, whatever makes it contiguous
    return specs, [a.tobytes() for a in whole.values()]


def arrays_from_json(specs: Any, parts: Sequence[bytes]) -> dict[str, np.ndarray]:
    """The inverse.

    Raises:
        DocumentError: types and bytes do not belong together.
    """
    known = {e.numpy: numpy_dtype(e.name) for e in ELEMENTS.values()}

    def read(value: Any, where: str) -> tuple[str, np.dtype, tuple[int, ...]]:
        get = Fields(value, where)
        name, dtype, shape = get.take("name", as_text), get.take("dtype", as_text), get.take("shape", as_integers)
        get.end()
        if dtype not in known:
            raise DocumentError(f"{where}.dtype: {dtype!r} is no element type")
        return name, known[dtype], shape

    found: dict[str, np.ndarray] = {}
    listed = as_list(specs, "arrays", read, _MOST)
    if len(listed) != len(parts):
        raise DocumentError(f"{len(listed)} arrays in {len(parts)} parts")
    for (name, dtype, shape), part in zip(listed, parts, strict=True):
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size != len(part):
            raise DocumentError(f"{name}: {len(part)} bytes are not {size}")
        found[name] = np.frombuffer(part, dtype).reshape(shape)
    return found


def in_memory(module: bytes) -> str:
    """A path at which a module lies that is gone with this process."""
    file = os.memfd_create("module.tar", os.MFD_CLOEXEC)
    with os.fdopen(file, "wb", closefd=False) as written:
        written.write(module)
    return f"{_IN_MEMORY}{file}"


def reason_of(error: MlcError) -> str:
    """What a client is told, to whom the path of a module in memory means nothing."""
    return re.sub(rf"{_IN_MEMORY}\d+", "the module", error.message)


def run(channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
    """Runs one module: ``{header, sizes}`` and its parts in, the outputs or a refusal out."""
    message = channel.receive()
    try:
        job = RunJob.of(received(message))
        opened = emulate_module if args["emulated"] else load_module
        with opened(in_memory(job.module), min(job.threads or args["threads"], args["threads"])) as module:
            outputs = module.run(job.feeds, seed=job.seed)
        specs, parts = arrays_to_json(outputs)
        channel.send({"outputs": specs, "sizes": [len(p) for p in parts]}, b"".join(parts))
    except MlcError as error:
        channel.send({"refused": reason_of(error)})
