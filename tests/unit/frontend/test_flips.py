"""Ten thousand damaged copies of six small files of TensorFlow Lite and Keras: refused, or a model that holds together.

Copies are read in forked processes, many in each, which say what they are about to read: one that dies, or takes too
long, names its copy.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import MlcError
from mlc.frontend.base import ImportedModel
from mlc.frontend.keras import probe
from mlc.frontend.keras.importer import import_keras
from mlc.frontend.limits import Limits
from mlc.frontend.tflite.importer import import_tflite
from mlc.ir.graph import verify
from mlc.ir.interp import run_graph
from tests.unit.frontend.keras.oracle import L, keras, saved, seeded
from tests.unit.frontend.keras.test_hostile import legacy
from tests.unit.frontend.tflite.test_hostile import convolution, floats

SECONDS, WAIT = 10, 600  # that a copy may take: of a core, as the refusals' contract says, and on a busy machine
BATCH = 250  # copies a process
LIMITS = Limits(tensor_bytes=1 << 24, constant_bytes=1 << 22, constants_bytes=1 << 24, nodes=10_000)

Import = Callable[..., ImportedModel]


def _recurrent() -> keras.Model:
    x = keras.Input((5, 3), name="x")
    y = L.Bidirectional(L.LSTM(2, return_sequences=True))(x)
    return seeded(keras.Model(x, [L.Dense(2, activation="softmax")(y), L.GlobalMaxPooling1D()(y)]))


def _convolutions() -> keras.Model:
    layers = [keras.Input((6, 5, 2)), L.Conv2D(3, 3), L.BatchNormalization(), L.ReLU(), L.Flatten(), L.Dense(2)]
    return seeded(keras.Sequential(layers))


FILES: dict[str, tuple[Import, Callable[[Path], bytes]]] = {
    "integers.tflite": (import_tflite, lambda folder: convolution()),
    "floats.tflite": (import_tflite, lambda folder: floats()),
    "recurrent.keras": (import_keras, lambda folder: saved(_recurrent(), folder).read_bytes()),
    "convolutions.keras": (import_keras, lambda folder: saved(_convolutions(), folder).read_bytes()),
    "keras2.h5": (import_keras, lambda folder: legacy()),
    "convolutions.h5": (import_keras, lambda folder: saved(_convolutions(), folder, ".h5").read_bytes()),
}


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Copies of a file in which one byte is another one."""
    rng = random.Random(seed)
    while True:
        copy = bytearray(data)
        copy[rng.randrange(len(copy))] ^= rng.randrange(1, 256)
        yield bytes(copy)


def contents(model: ImportedModel) -> tuple[str, list[bytes]]:
    """All that a model computes with."""
    return str(model.graph), [array.tobytes() for array in model.graph.constants.values()]


def attempt(read: Import, data: bytes, sound: tuple[str, list[bytes]] | None) -> str:
    """Reads a copy: ``refused``, or ``read`` if it holds together and runs; anything else raises.

    Args:
        read: the importer.
        data: the copy.
        sound: contents of the original where checksums cover all of them: then a copy that is read means the same.
    """
    try:
        model = read(data, limits=LIMITS)
    except MlcError:
        return "refused"
    verify(model.graph)
    if sound is not None:
        assert contents(model) == sound
    with np.errstate(all="ignore"):
        run_graph(model.graph, {v.name: np.zeros(v.type.shape, v.type.dtype.numpy) for v in model.graph.inputs})
    return "read"


def guarded(count: int, body: Callable[[int], str]) -> tuple[dict[str, int], list[str]]:
    """Calls ``body`` for 0, 1, … in forked processes.

    Returns:
        how often it said what, and what went wrong: exceptions, signals, and calls that took too long.
    """
    counts: dict[str, int] = {}
    wrong: list[str] = []
    at = 0
    while at < count:
        ends = os.pipe()
        child = os.fork()
        if not child:
            _batch(ends[1], range(at, min(at + BATCH, count)), body)
        os.close(ends[1])
        with open(ends[0], "rb") as answers:
            while size := answers.read(4):
                said = answers.read(struct.unpack("<I", size)[0]).decode()
                if said.startswith("wrong"):
                    wrong.append(f"{at}: {said}")
                else:
                    counts[said] = counts.get(said, 0) + 1
                at += 1
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            wrong.append(f"{at}: " + (signal.Signals(-code).name if code < 0 else f"code {code}"))
            at += 1
    return counts, wrong


def _batch(answers: int, numbers: range, body: Callable[[int], str]) -> None:
    """The forked process: answers for each number, and ends."""
    for ending in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(ending, signal.SIG_DFL)
    for k in numbers:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAIT)
        try:
            said = body(k)
        except BaseException:  # whatever it is, it is told
            said = f"wrong\n{traceback.format_exc()}"
        text = said.encode()
        os.write(answers, struct.pack("<I", len(text)) + text)
    probe._SERVER.stop()
    os._exit(0)


def flip(name: str, flips: int, seed: int, folder: Path) -> dict[str, int]:
    read, make = FILES[name]
    data = make(folder)
    model = read(data)
    sound = contents(model) if name.endswith(".keras") else None
    copies = list(itertools.islice(damaged(data, seed), flips))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts, wrong = guarded(flips, lambda k: attempt(read, copies[k], sound))
    assert not wrong, "\n".join(wrong)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_flipped_bytes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """1,700 copies of each file."""
    monkeypatch.setattr("mlc.frontend.keras.probe.SECONDS", 1)
    counts = flip(name, 1700, seed=14, folder=tmp_path)
    print(name, counts, file=sys.stderr)
    assert sum(counts.values()) == 1700
    assert set(counts) == {"refused", "read"}


def test_what_dies_or_lasts_is_told() -> None:
    def body(k: int) -> str:
        match k:
            case 2:
                os.kill(os.getpid(), signal.SIGKILL)
            case 4:
                raise ValueError("no error of ours")
            case 5:
                os.kill(os.getpid(), signal.SIGALRM)
        return "read"

    counts, wrong = guarded(7, body)
    assert counts == {"read": 4}
    assert [text.split()[:2] for text in wrong] == [["2:", "SIGKILL"], ["4:", "wrong"], ["5:", "SIGALRM"]]
