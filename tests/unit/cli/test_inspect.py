"""``mlc inspect``, ``mlc ops`` and ``mlc targets``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from mlc.records.record import DECIDED, encode
from tests.unit.cli.conftest import Result, onnx_model
from tests.unit.records.test_record import record

Mlc = Callable[..., Result]


def test_a_module(mlc: Mlc, module: Path) -> None:
    result = mlc("inspect", "module.tar")
    assert (result.code, result.err) == (0, "")
    for line in ("module 'line', made by mlc 0.1.0", "workspace      144 B", "scale       1   0.00  0.00  Mul_0"):
        assert line in result.out
    document = json.loads(mlc("inspect", "module.tar", "--json").out)
    assert document["kind"] == "module"
    assert document["kernels"][1] == {"kernel": "shift", "steps": 1, "flops": 15, "bytes": 140, "sources": ["Add_1"]}
    assert document["memory"]["workspace_bytes"] == 144


def test_code_of_a_kernel(mlc: Mlc, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.api.assembly", lambda package: "scale:\n\tret\n\t.size\tscale, 1\n")
    assert mlc("inspect", "module.tar", "--asm", "scale").out == "scale:\n\tret\n"
    result = mlc("inspect", "module.tar", "--asm", "shift")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: module.tar: holds no assembly of shift")
    assert mlc("inspect", "module.tar", "--src", "shift").out == "### shift\n\ny[0] = t[0]\n"
    assert mlc("inspect", "module.tar", "--graph").out == "y = x * w + b\n"
    result = mlc("inspect", "module.tar", "--src", "shiftt")
    assert (result.code, result.err.splitlines()[-1]) == (2, "hint: did you mean shift?")
    result = mlc("inspect", "module.tar", "--asm", "zzz")
    assert result.err == "error: module.tar: there is no kernel 'zzz'\nhint: known: scale, shift\n"


def test_a_model(mlc: Mlc, model: Path, golden: Callable[[str], None]) -> None:
    golden(mlc("inspect", "line.onnx").out)


def test_a_saved_model(mlc: Mlc, model: Path) -> None:
    mlc("import", "line.onnx", "-o", "line.mlc")
    document = json.loads(mlc("inspect", "line.mlc", "--json").out)
    assert (document["kind"], document["format"], document["importable"]) == ("model", "mlc", True)
    assert document["operators"] == {"add": 1, "mul": 1}
    assert document["producer"] == "mlc import, from onnx (line.onnx)"


def test_the_graph_of_a_model(mlc: Mlc, model: Path) -> None:
    out = mlc("inspect", "line.onnx", "--graph").out
    assert out.startswith("@graph ")
    assert "%y: f32[3,5] = add(%t, %b)  # Add_1" in out


def test_what_cannot_be_imported_is_listed(mlc: Mlc, tmp_path: Path) -> None:
    onnx.save(onnx_model(extra="Frobnicate"), tmp_path / "odd.onnx")
    result = mlc("inspect", "odd.onnx")
    assert result.code == 0
    assert "Frobnicate" in result.out.partition("it cannot be imported as it stands:\n")[2]
    onnx.save(onnx_model("rows"), tmp_path / "open.onnx")
    result = mlc("inspect", "open.onnx")
    assert "x     f32[rows,5]" in result.out
    assert "--dim rows=" in result.out.rpartition("hint: ")[2]
    assert mlc("inspect", "open.onnx", "--dim", "rows=3").out.endswith("it can be imported\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("module.tar", "--dim", "n=1"),
            "error: --shape, --dim, --const, --input-layout and --model-format are for models",
        ),
        (("line.onnx", "--asm", "k"), "error: line.onnx: is a model; only a module.tar has kernels"),
        (("none",), "error: none: cannot be read"),
    ],
)
def test_refusals(mlc: Mlc, module: Path, arguments: tuple[str, ...], message: str) -> None:
    result = mlc("inspect", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)


def test_operators(mlc: Mlc) -> None:
    result = mlc("ops")
    assert result.code == 0
    assert "\nConv " in result.out
    document = json.loads(mlc("ops", "--json").out)
    assert document["frontend"] == "onnx"
    assert {"Conv", "MatMul"} <= {entry["name"] for entry in document["operators"]}
    assert result.err == f"{len(document['operators'])} operators\n"
    assert mlc("ops", "--frontend", "onx").err == "error: no front end 'onx'\nhint: did you mean onnx?\n"


def test_records(mlc: Mlc) -> None:
    slow, fast = record(0, 4e-3), record(1, 1e-3, config={"rows": 8})
    two = record(4, 2e-3, threads=2, explorer=DECIDED)
    lines = [encode(r) for r in (slow, fast, record(2, None), record(3, 2e-3), two)]
    Path("r.jsonl").write_bytes(b"".join(lines) + b"rubbish\n")
    out = mlc("inspect", "r.jsonl").out
    assert "r.jsonl: 4 trials of 2 tasks, 1 of them decided" in out
    assert "on znver3, 1 thread\n" in out
    assert "1 damaged lines left out" in out
    assert "\u2583\u2588\u2588\u2588" in out  # a quarter, then all
    assert "run_crash" in out
    document = json.loads(mlc("inspect", "r.jsonl", "--json").out)
    one, other = document["tasks"]
    assert (one["trials"], one["best_ms"], one["config"], one["failures"]) == (4, 1.0, {"rows": 8}, {"run_crash": 1})
    assert one["curve"] == [250.0, 1000.0, 1000.0, 1000.0]
    assert (other["threads"], other["decided"], other["trials"]) == (2, True, 0)


def test_operands_tell_tasks_of_one_name_apart(mlc: Mlc) -> None:
    y = {"dtype": "f32", "shape": [1, 64, 8, 8]}
    blocked = {**y, "layout": [["split", 1, 8], ["reorder", 0, 1, 3, 4, 2]]}
    bias = {"dtype": "f32", "shape": [64, 1, 1], "constant": True}
    nodes = [{"op": "add", "inputs": pair, "attrs": {}, "outputs": [y]} for pair in ([0, 1], [3, 2])]
    ends = {"row_major": False, "literals": [], "nodes": nodes, "outputs": [4]}
    others = [{"dtype": "f32", "shape": shape} for shape in ([1, 64, 8, 8], [64, 8, 8])]
    documents = [*({"operands": [blocked, bias, other], **ends} for other in others), {"of": "another program"}]
    lines = [encode(record(k, document=d, workload=f"{k:016x}")) for k, d in enumerate(documents)]
    Path("r.jsonl").write_bytes(b"".join(lines))
    out = mlc("inspect", "r.jsonl").out
    assert "  1x64x8x8 1x64x8x8  " in out
    assert "  1x64x8x8 64x8x8  " in out
    tasks = json.loads(mlc("inspect", "r.jsonl", "--json").out)["tasks"]
    assert tasks[1]["operands"] == ["f32[1,64,8,8]", "f32[64,1,1]", "f32[64,8,8]"]
    assert tasks[1]["text"].splitlines() == [
        "(f32[1,64,8,8]@split(1,8).reorder(0,1,3,4,2), const f32[64,1,1], f32[64,8,8]) -> any",
        "%3 = add(%0, %1) -> f32[1,64,8,8]",
        "%4 = add(%3, %2) -> f32[1,64,8,8]",
        "return %4",
    ]
    assert (tasks[2]["operands"], tasks[2]["text"]) == ([], '{"of":"another program"}')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--graph"], "holds tuning records"), ([], "holds no trial"), (["--dim", "n=1"], "--json")],
)
def test_refusals_of_records(mlc: Mlc, arguments: list[str], message: str) -> None:
    Path("r.jsonl").write_bytes(b"")
    result = mlc("inspect", "r.jsonl", *arguments)
    assert result.code == 2
    assert message in result.err


def test_targets(mlc: Mlc) -> None:
    result = mlc("targets")
    assert result.out.splitlines()[0].split() == ["target", "compiles", "here", "runs", "here", "about"]
    (x86,) = (t for t in json.loads(mlc("targets", "--json").out)["targets"] if t["name"] == "x86")
    assert x86["compiles"] is True


def test_names_send_no_codes_to_the_terminal(mlc: Callable[..., Result], tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in ("x", "y"))
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["a\x1b[31m"], name="n\x1b]0;title\x07\nline"),
        onnx.helper.make_node("Sigmoid", ["a\x1b[31m"], ["y"], name="\x9b2J"),
    ]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph(nodes, "codes", [x], [y]), ir_version=9), tmp_path / "m.onnx"
    )
    compiled = mlc("compile", "m.onnx", "-o", "m.tar", "--print-ir-after", "fuse")
    assert compiled.code == 0
    kernel = "k0_relu_sigmoid"
    shown = [mlc("inspect", *arguments) for arguments in (("m.onnx", "--graph"), ("m.tar", "--graph"), ("m.tar",))]
    shown += [mlc("inspect", "m.tar", option, kernel) for option in ("--src", "--asm")]
    for result in (compiled, *shown):
        assert result.code == 0
        assert not set("\x1b\x07\x9b") & set(result.out + result.err)


# -- kernels of a GPU -------------------------------------------------------------------------------------------------
@pytest.fixture
def gpu_module(mlc: Mlc, model: Path) -> str:
    """A module with kernels of an NVIDIA GPU."""
    pytest.importorskip("cuda.bindings.nvrtc")
    result = mlc("compile", "line.onnx", "--target", "cuda -arch=sm_80,sm_90", "-o", "gpu.tar")
    assert result.code == 0, result.err
    return "gpu.tar"


def test_kernels_of_a_gpu_are_told_without_one(mlc: Mlc, gpu_module: str) -> None:
    document = json.loads(mlc("inspect", gpu_module, "--json").out)
    kernels = document["device_kernels"]
    assert kernels
    assert sorted(arch for k in kernels for arch in k["resources"]) == ["sm_80", "sm_90"]
    for k in kernels:
        assert set(k["resources"]) == set(k["occupancy"])
        assert all(r["registers"] > 0 for r in k["resources"].values())
        assert all(0 < share <= 1 for share in k["occupancy"].values())
        assert k["bound"] == "launch"
    text = mlc("inspect", gpu_module).out
    assert "registers" in text
    assert text.count(kernels[0]["kernel"]) == 2


@pytest.mark.parametrize(
    "kind, words",
    [("--src", "__global__"), ("--ptx", ".visible .entry"), ("--sass", "EXIT")],
)
def test_code_of_a_gpu(mlc: Mlc, gpu_module: str, kind: str, words: str) -> None:
    name = json.loads(mlc("inspect", gpu_module, "--json").out)["device_kernels"][0]["kernel"]
    for kernel in (name, name.rpartition("_")[0]):
        result = mlc("inspect", gpu_module, kind, kernel)
        if "reading machine code needs nvdisasm" in result.err:
            pytest.skip("there is no disassembler")
        assert words in result.out
        assert name in result.out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--ptx", "nothing"), "the device has no kernel 'nothing'"),
        (("--src", "nothing"), "there is no kernel 'nothing'"),
        (("--arch", "sm_80"), "--arch is only for --ptx and --sass"),
        (("--ptx", "a", "--sass", "b"), "--ptx contradicts --sass"),
    ],
)
def test_code_that_a_gpu_has_not(mlc: Mlc, gpu_module: str, arguments: tuple[str, ...], message: str) -> None:
    result = mlc("inspect", gpu_module, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_code_for_another_gpu(mlc: Mlc, gpu_module: str) -> None:
    name = json.loads(mlc("inspect", gpu_module, "--json").out)["device_kernels"][0]["kernel"]
    result = mlc("inspect", gpu_module, "--ptx", name, "--arch", "sm_75")
    assert (result.code, result.out) == (2, "")
    assert "is not compiled for sm_75\nhint: it is for sm_80, sm_90" in result.err


def test_code_of_devices_whose_drivers_compile(mlc: Mlc, model: Path) -> None:
    assert mlc("compile", "line.onnx", "--target", "opencl", "-o", "cl.tar").code == 0
    kernels = json.loads(mlc("inspect", "cl.tar", "--json").out)["device_kernels"]
    assert {len(k["resources"]) for k in kernels} == {0}
    assert all(set(k["occupancy"]) == {""} and 0 < k["occupancy"][""] <= 1 for k in kernels)
    assert kernels[0]["kernel"] in mlc("inspect", "cl.tar").out
    assert "__kernel" in mlc("inspect", "cl.tar", "--src", kernels[0]["kernel"]).out
    result = mlc("inspect", "cl.tar", "--ptx", kernels[0]["kernel"])
    assert (result.code, result.out) == (2, "")
    assert "the device's driver compiles its kernels\nhint: --src" in result.err


def test_a_module_without_a_gpu_has_no_such_code(mlc: Mlc, model: Path) -> None:
    assert mlc("compile", "line.onnx", "-o", "cpu.tar").code == 0
    result = mlc("inspect", "cpu.tar", "--ptx", "k0")
    assert (result.code, result.out) == (2, "")
    assert "is not compiled for a GPU\nhint: mlc compile --target cuda" in result.err
