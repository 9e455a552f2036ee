"""What the command line says to bad input: one message, its exit code, nothing left behind, soon and in little memory.

Each case is a process of its own in an empty folder, as a user would start it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.errors import ExitCode

MAX_SECONDS = 10.0
MAX_BYTES = 1 << 30
SRC = Path(__file__).parents[2] / "src"
node = helper.make_node

# A process counts the memory of the one that started it as its own, if that is more; so a small one does.
START = """
import os, sys
process = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
with open(sys.argv[1], "w") as file:
    print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, file=file)
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int


def mlc(folder: Path, *arguments: str, stdout: Path | None = None) -> Ended:
    """Run the command in a folder; its temporary files go to ``folder/tmp``."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLC_")}
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": str(SRC)}
    out, err, usage = temporary / "out", temporary / "err", temporary / "usage"
    command = [sys.executable, "-m", "mlc", *arguments]
    with (stdout or out).open("wb") as to, err.open("wb") as errors:
        start = [sys.executable, "-S", "-c", START, str(usage), *command]
        subprocess.run(start, cwd=folder, env=environment, stdout=to, stderr=errors, check=True)
    texts = [(p.read_text(encoding="utf-8") if p.exists() else "") for p in (out, err)]
    # of a core: a busy machine, or one that sleeps, is no fault of the command's; waiting is what timeouts are for
    code, seconds, peak = usage.read_text().split()
    for p in (out, err, usage):
        p.unlink(missing_ok=True)
    return Ended(int(code), *texts, float(seconds), int(peak))


def refused(folder: Path, code: ExitCode, message: str, *arguments: str, hint: str = "") -> Ended:
    """Run the command and check all that a refusal promises.

    Args:
        folder: where to run it.
        code: the exit code.
        message: a part of the line that says what is wrong.
        arguments: of the command.
        hint: a part of the line that says what to do.
    """
    before = sorted(folder.rglob("*"))
    ended = mlc(folder, *arguments)
    lines = ended.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    hints = [line for line in lines if line.startswith("hint: ")]
    assert ended.code == code, ended.err
    assert len(errors) == 1, ended.err
    assert message in errors[0]
    # only where the message says by itself what was expected is there none
    assert len(hints) == 1 or not hint, ended.err
    assert lines[-1 - len(hints) :] == [*errors, *hints]
    assert hint in "".join(hints)
    assert "Traceback" not in ended.err + ended.out
    assert ended.out == ""
    assert ended.seconds < MAX_SECONDS
    assert ended.peak_bytes < MAX_BYTES
    assert [p for p in sorted(folder.rglob("*")) if p not in before and p.name != "tmp"] == []
    return ended


# -- models -----------------------------------------------------------------------------------------------------------
def info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = ("y",),
    stored: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(a, name) for name, a in (stored or {}).items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "test", list(inputs), results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def scaled(**external: str) -> onnx.ModelProto:
    """y = x · w, with ``w`` in the file, or in external data with these entries."""
    weights = {"w": np.arange(500, dtype=np.float32)}
    proto = model([node("Mul", ["x", "w"], ["y"], name="scale")], [info("x", 3, 500)], stored=weights)
    if external:
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            tensor.external_data.add(key=key, value=value)
    return proto


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def names_of(count: int) -> list[str]:
    return [f"x{k}" for k in range(count)]


def filled(*shape: int) -> onnx.ModelProto:
    return model([node("ConstantOfShape", ["s"], ["y"], name="fill")], stored={"s": ints(*shape)})


def write(path: Path, proto: onnx.ModelProto | bytes) -> None:
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())


BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto | bytes], ExitCode, str, str]] = {
    # name: (the model, exit code, part of the message, part of the hint)
    "empty file": (
        lambda: b"",
        ExitCode.BAD_MODEL,
        "m.onnx: not a model file: looks like an empty file",
        "known formats",
    ),
    "a text": (lambda: b"no model, but a text\n" * 40, ExitCode.BAD_MODEL, "m.onnx: not a model file", "known formats"),
    "an archive": (lambda: b"PK\x03\x04" + bytes(500), ExitCode.BAD_MODEL, "m.onnx: not a model file", "known formats"),
    "random bytes": (
        lambda: np.random.default_rng(0).bytes(4096),
        ExitCode.BAD_MODEL,
        "m.onnx: not a model file",
        "known formats",
    ),
    "truncated": (
        lambda: scaled().SerializeToString()[:1200],
        ExitCode.BAD_MODEL,
        "m.onnx: not an ONNX model, or a damaged or truncated one",
        "compare the file's size",
    ),
    "external data above the folder": (
        lambda: scaled(location="../secret.bin"),
        ExitCode.BAD_MODEL,
        "initializer 'w': external data at '../secret.bin', not a path inside the model's folder",
        "copy them there",
    ),
    "external data at an absolute path": (
        lambda: scaled(location="/etc/passwd"),
        ExitCode.BAD_MODEL,
        "external data at '/etc/passwd', not a path inside",
        "copy them there",
    ),
    "external data by a link": (
        lambda: scaled(location="link.bin"),
        ExitCode.BAD_MODEL,
        "external data 'link.bin' is a symbolic link",
        "copy them there",
    ),
    "external data that is missing": (
        lambda: scaled(location="gone.bin"),
        ExitCode.BAD_MODEL,
        "external data 'gone.bin' cannot be opened: No such file",
        "copy them there",
    ),
    "external data that is too short": (
        lambda: scaled(location="short.bin"),
        ExitCode.BAD_MODEL,
        "external data ends at byte 2000 of 'short.bin', which has 8",
        "copy it anew",
    ),
    "external data of 1 TB over a sparse file": (
        lambda: scaled(location="sparse.bin", length=str(1 << 40)),
        ExitCode.BAD_MODEL,
        "initializer 'w': external data of 1099511627776 bytes, its shape and type need 2000",
        "",
    ),
    "more inputs than an entry point takes": (
        lambda: model([node("Sum", names_of(20_000), ["y"])], [info(name, 1) for name in names_of(20_000)]),
        ExitCode.BAD_MODEL,
        "inputs and outputs of the model: 20001, the limit 'arguments' is 10000",
        "--limit arguments=20001",
    ),
    "a name of 1 MB": (
        lambda: model([node("Neg", ["x"], ["y"], name="n" * (1 << 20))], [info("x", 3)]),
        ExitCode.BAD_MODEL,
        "characters: 1048576, the limit 'name_length' is 4096",
        "--limit name_length=1048576",
    ),
    "a split into 2^62 parts": (
        lambda: model([node("Split", ["x"], ["y"], name="cut", num_outputs=1 << 62)], [info("x", 8)], opset=18),
        ExitCode.BAD_MODEL,
        "node 'cut' (Split): num_outputs is 4611686018427387904, the node has 1 outputs",
        "",
    ),
    "a fill of 4 TB": (
        lambda: filled(1 << 40),
        ExitCode.BAD_MODEL,
        "node 'fill' (ConstantOfShape): the result (f32[1099511627776]): 4398046511104 bytes, the limit 'tensor_bytes'",
        "--limit tensor_bytes=4398046511104",
    ),
    "a fill of 2^80 elements": (
        lambda: filled(1 << 40, 1 << 40),
        ExitCode.BAD_MODEL,
        "node 'fill' (ConstantOfShape)",
        "--limit tensor_bytes=",
    ),
    "an expansion to 32 GB": (
        lambda: model([node("Expand", ["x", "s"], ["y"], name="grow")], [info("x", 1)], stored={"s": ints(1 << 33)}),
        ExitCode.BAD_MODEL,
        "node 'grow' (Expand)",
        "--limit tensor_bytes=34359738368",
    ),
    "a circle": (
        lambda: model(
            [node("Add", ["x", "b"], ["a"], name="one"), node("Neg", ["a"], ["b"], name="two")], [info("x", 3)], ["b"]
        ),
        ExitCode.BAD_MODEL,
        "nodes depend on each other in a circle: 'two' -> 'one' -> 'two'",
        "from inputs to outputs",
    ),
    "an unknown operator": (
        lambda: model([node("StringNormalizer", ["x"], ["y"], name="words")], [info("x", 3)]),
        ExitCode.UNSUPPORTED,
        "not supported: StringNormalizer (ai.onnx 17), node 'words'",
        "mlc ops",
    ),
    "an open dimension": (
        lambda: model([node("Neg", ["x"], ["y"])], [info("x", "batch", 5)]),
        ExitCode.USAGE,
        "input 'x': dimension 0 is 'batch'",
        "--dim batch=1",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with what the models above point at, beside it and in it."""
    inside = tmp_path / "work"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4000))
    (inside / "short.bin").write_bytes(bytes(8))
    with (inside / "sparse.bin").open("wb") as file:
        file.truncate(1 << 40)
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    return inside


@pytest.mark.sweep(10)
@pytest.mark.parametrize("case", BROKEN)
def test_model_that_cannot_be_compiled(case: str, folder: Path) -> None:
    make, code, message, hint = BROKEN[case]
    write(folder / "m.onnx", make())
    refused(folder, code, message, "compile", "m.onnx", "-o", "m.tar", hint=hint)


@pytest.mark.parametrize("command", ["import", "run", "inspect"])
def test_every_command_refuses_a_truncated_model_alike(command: str, folder: Path) -> None:
    write(folder / "m.onnx", scaled().SerializeToString()[:1200])
    refused(folder, ExitCode.BAD_MODEL, "m.onnx: not an ONNX model, or a damaged or truncated one", command, "m.onnx")


OPTIONS: dict[str, tuple[list[str], str, str]] = {
    # name: (arguments after the model, part of the message, part of the hint)
    "level": (["-O", "7"], "'7' is not a whole number from 0 to 3", "mlc compile --help"),
    "target": (["--target", "x68"], "unknown target 'x68'", "x86"),
    "pass": (["--disable-pass", "fuze"], "no pass 'fuze'", "did you mean fuse?"),
    "pass to print after": (["--print-ir-after", "fuze"], "no pass 'fuze' ran", "did you mean fuse?"),
    "shape": (["--shape", "x:3,,500"], "--shape", "NAME=1,3,224,224"),
    "shape of another rank": (["--shape", "x:3"], "input 'x' is f32[3,500] in the model", ""),
    "limit": (["--limit", "tensors=3"], "tensors", "tensor_bytes"),
    "unknown option": (["--outptu", "m.tar"], "there is no option --outptu", "--output"),
    "folder as output": (["-o", "."], ".: cannot be written: it is a directory", "name a file"),
    "folder that does not exist": (["-o", "none/m.tar"], "none/m.tar: cannot be written: No such file", "folder"),
    "output that is the model": (["-o", "m.onnx"], "m.onnx: is read, so it cannot be written", "another file"),
    "output on a full device": (["-o", "/proc/m.tar"], "/proc/m.tar: cannot be written", "folder"),
    "file as folder for dumps": (["--dump-ir", "m.onnx"], "m.onnx", ""),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("case", OPTIONS)
def test_option_that_cannot_be_used(case: str, folder: Path) -> None:
    arguments, message, hint = OPTIONS[case]
    write(folder / "m.onnx", scaled())
    given = [] if "-o" in arguments else ["-o", "m.tar"]
    refused(folder, ExitCode.USAGE, message, "compile", "m.onnx", *given, *arguments, hint=hint)
    assert (folder / "m.onnx").read_bytes() == scaled().SerializeToString()


def test_more_memory_than_allowed(folder: Path) -> None:
    write(folder / "m.onnx", scaled())
    arguments = ("compile", "m.onnx", "-o", "m.tar", "--max-memory", "1K")
    refused(folder, ExitCode.UNSUPPORTED, "more than the limit of 1024", *arguments, hint="--max-memory ")
    assert not (folder / "m.tar").exists()


def test_more_kernels_than_allowed(folder: Path) -> None:
    """Products of many different shapes, each of which takes a kernel of its own."""
    products = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"y{k}"]) for k in range(1, 6)]
    tensors = {letter: [(f"{letter}{k}", k) for k in range(1, 6)] for letter in "xwy"}
    model = helper.make_model(
        helper.make_graph(
            products, "products",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [k, 3]) for n, k in tensors["x"]],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [k, k]) for n, k in tensors["y"]],
            [numpy_helper.from_array(np.full((3, k), k, np.float32), n) for n, k in tensors["w"]],
        )
    )  # fmt: skip
    write(folder / "m.onnx", model)
    arguments = ("compile", "m.onnx", "-o", "m.tar", "--max-kernels", "4")
    refused(folder, ExitCode.UNSUPPORTED, "takes 5 distinct kernels", *arguments, hint="mlc compile --max-kernels 10")


@pytest.mark.parametrize(
    "path, message",
    [
        ("gone.onnx", "gone.onnx: cannot be opened: No such file"),
        (".", ".: is a folder, not a file"),
        ("pipe", "pipe: is a named pipe"),
    ],
)
def test_path_that_is_no_file(path: str, message: str, folder: Path) -> None:
    """A pipe must not be waited for."""
    os.mkfifo(folder / "pipe")
    refused(folder, ExitCode.USAGE, message, "compile", path)


def test_nested_functions_that_double(folder: Path) -> None:
    """Thirty functions, each of which calls the one below twice: a billion nodes."""
    functions = []
    for k in range(30):
        below = [("Neg", "")] * 2 if k == 0 else [(f"f{k - 1}", "own")] * 2
        body = [
            node(below[0][0], ["a"], ["b"], domain=below[0][1]),
            node(below[1][0], ["b"], ["c"], domain=below[1][1]),
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"f{k}", ["a"], ["c"], body, imports))
    proto = model([node("f29", ["x"], ["y"], domain="own")], [info("x", 3)])
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    write(folder / "m.onnx", proto)
    refused(folder, ExitCode.BAD_MODEL, "the limit 'nodes' is 100000", "compile", "m.onnx", hint="--limit nodes=")


def test_division_of_the_least_integer_folds_without_a_signal(folder: Path) -> None:
    """INT_MIN / -1 and x / 0 among constants: sound models, whose folding must not end the process."""
    least = np.iinfo(np.int64).min
    nodes = [
        node("Div", ["a", "b"], ["q"], name="divide"),
        node("Mod", ["a", "b"], ["r"]),
        node("Add", ["q", "r"], ["y"]),
    ]
    proto = model(nodes, stored={"a": ints(least, 5), "b": ints(-1, 0)})
    write(folder / "m.onnx", proto)
    ended = mlc(folder, "compile", "m.onnx", "-o", "m.tar")
    assert ended.code == 0, ended.err
    assert (folder / "m.tar").exists()


def chain(step: Callable[[int, str], tuple[list[onnx.NodeProto], str]], count: int) -> list[onnx.NodeProto]:
    """Nodes one behind the other, from ``x`` to ``y``."""
    nodes: list[onnx.NodeProto] = []
    last = "x"
    for k in range(count):
        more, last = step(k, last)
        nodes += more
    return [*nodes, node("Identity", [last], ["y"])]


def turned(k: int, x: str) -> tuple[list[onnx.NodeProto], str]:
    return [node("Transpose", [x], [f"t{k}"], perm=[1, 0]), node("Reshape", [f"t{k}", "s"], [f"r{k}"])], f"r{k}"


def chosen(k: int, x: str) -> tuple[list[onnx.NodeProto], str]:
    return [node("Gather", [x, "i"], [f"g{k}"]), node("Where", ["c", f"g{k}", x], [f"w{k}"])], f"w{k}"


LARGE: dict[str, Callable[[], onnx.ModelProto]] = {
    # sound models that took more than a minute, gigabytes or a traceback
    "transposed and reshaped 200 times": lambda: model(
        chain(turned, 200), [info("x", 12, 10)], stored={"s": ints(12, 10)}
    ),
    "a diamond of choices": lambda: model(
        chain(chosen, 200), [info("x", 16)], stored={"i": np.arange(16)[::-1].copy(), "c": np.arange(16) % 3 == 0}
    ),
    "a concat of 20,000": lambda: model([node("Concat", ["x"] * 20_000, ["y"], axis=0)], [info("x", 3)]),
    "a normalisation over 2^62 channels": lambda: model(
        [node("LRN", ["x"], ["y"], size=1 << 62)], [info("x", 1, 8, 4)]
    ),
    "a dilation of 2^62": lambda: model(
        [node("Conv", ["x", "w"], ["y"], dilations=[1 << 62], strides=[1 << 62])],
        [info("x", 1, 3, 8)],
        stored={"w": np.ones((4, 3, 1), np.float32)},
    ),
    "a window of 1500 by 3000": lambda: model(
        [node("AveragePool", ["x"], ["y"], kernel_shape=[1500, 3000], pads=[1, 1, 1, 1])], [info("x", 1, 1, 1500, 3000)]
    ),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("case", LARGE)
def test_large_or_absurd_but_sound_model_compiles(case: str, folder: Path) -> None:
    write(folder / "m.onnx", LARGE[case]())
    ended = mlc(folder, "compile", "m.onnx", "-o", "m.tar")
    assert ended.code == 0, ended.err
    assert ended.peak_bytes < MAX_BYTES
    assert mlc(folder, "run", "m.tar").code == 0


def damaged(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound module.tar of y = x · w."""
    folder = tmp_path_factory.mktemp("package")
    write(folder / "m.onnx", scaled())
    ended = mlc(folder, "compile", "m.onnx", "-o", "m.tar")
    assert ended.code == 0, ended.err
    return (folder / "m.tar").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_package_cut_short(share: float, package: bytes, folder: Path) -> None:
    (folder / "m.tar").write_bytes(package[: int(len(package) * share)])
    refused(folder, ExitCode.BAD_MODEL, "m.tar: ", "run", "m.tar")


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_package_with_a_flipped_bit(share: float, package: bytes, folder: Path) -> None:
    """In the middle of a member: its sum no longer fits."""
    (folder / "m.tar").write_bytes(package)
    damaged(folder / "m.tar", int(len(package) * share) // 512 * 512 + 5)
    ended = mlc(folder, "run", "m.tar")
    # a flip in the padding between members changes nothing
    assert ended.code in (ExitCode.BAD_MODEL, ExitCode.OK), ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": np.zeros((3, 500))}, "x"),
        ({"x": np.zeros((3, 499), np.float32)}, "x"),
        ({"x": np.zeros((3, 500), np.float32), "z": np.zeros(1)}, "z"),
    ],
    ids=["type", "shape", "unknown"],
)
def test_inputs_that_do_not_fit(arrays: dict[str, np.ndarray], message: str, package: bytes, folder: Path) -> None:
    (folder / "m.tar").write_bytes(package)
    np.savez(folder / "in.npz", **arrays)
    refused(folder, ExitCode.USAGE, message, "run", "m.tar", "--inputs", "in.npz", "--outputs", "out.npz")


def test_inputs_that_are_no_arrays(package: bytes, folder: Path) -> None:
    """A pickle in an ``.npz`` is not opened."""
    (folder / "m.tar").write_bytes(package)
    np.savez(folder / "in.npz", x=np.array([{"a": 1}], dtype=object))
    refused(folder, ExitCode.USAGE, "in.npz", "run", "m.tar", "--inputs", "in.npz")


def test_sound_model_compiles_and_leaves_one_file(folder: Path) -> None:
    """What all of the above would do otherwise."""
    write(folder / "m.onnx", scaled())
    before = set(folder.rglob("*"))
    ended = mlc(folder, "compile", "m.onnx", "-o", "m.tar")
    assert ended.code == 0, ended.err
    assert {p.name for p in set(folder.rglob("*")) - before} == {"m.tar", "tmp"}
    assert ended.peak_bytes < MAX_BYTES
