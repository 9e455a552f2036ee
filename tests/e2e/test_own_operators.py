"""Operators of the user's own in ONNX models, and networks in Python files, by the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.cli.main import run
from mlc.ir.interp.graph import run_graph

OPERATORS = """
import mlc
from mlc import te


@mlc.operator(name="Lagged")
def lagged(x, w, *, lag=1):
    n, c, length = x.shape
    r = te.reduce_axis(c, "r")
    return te.compute(
        (n, w.shape[1], length),
        lambda b, o, t: te.sum(te.where(te.inside(t - lag, 0, length), x[b, r, t - lag], 0.0) * w[r, o], r),
        "lagged",
    )
"""
NETWORK = """
import numpy as np
import mlc
from ops import lagged


def network(batch=4):
    net = mlc.graph("lagging")
    x = net.input("x", (batch, 3, 6))
    y = lagged(x, net.parameter("w", np.ones((3, 2))), lag=2) * net.constant("k", np.full((2, 1), 0.5))
    net.output("y", mlc.nn.linear(mlc.nn.flatten(y), 3, "head"))
    return net
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.py").write_text(OPERATORS)
    Path("net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Lagged", ["x", "w"], ["l"], name="lagged", domain="my.own", lag=2),
        helper.make_node("Relu", ["l"], ["y"], name="relu"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "lagging", [info("x", TensorProto.FLOAT, ["n", 3, 8])], [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), "m.onnx")
    np.savez("d.npz", x=rng.standard_normal((32, 3, 6)).astype(np.float32), label=rng.integers(0, 3, 32))


def test_an_onnx_model_calls_operators_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    model = mlc.load("m.onnx", dims={"n": 2}, operators="ops.py")
    x = np.random.default_rng(1).standard_normal((2, 3, 8)).astype(np.float32)
    (w,) = model.graph.constants.values()
    late = np.concatenate([np.zeros((2, 3, 2)), x[:, :, :-2]], 2)
    expected = np.maximum(np.einsum("brt,ro->bot", late, w), 0)
    with mlc.compile(model).load(1) as module:
        np.testing.assert_allclose(module.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
    options = ["--operators", "ops.py"]
    assert run(["compile", "m.onnx", "--dim", "n=2", "-o", "m.tar", *options]) == 0
    assert run(["run", "m.tar", "--verify", "model", "--verify-layers", *options]) == 0
    assert "against interpreter" in capsys.readouterr().out
    assert run(["inspect", "m.onnx", "--dim", "n=2", "--gradient", *options]) == 0
    gradients = capsys.readouterr().out
    assert "# lagged(x: f32[2,3,8], w: f32[3,5]) -> l: f32[2,5,8]  # lagged" in gradients
    assert "dx[i:2, j:3, k:8] = sum(select(k + 2 < 8, dl[i, j_1, k + 2] * w[j, j_1], 0.0) for j_1 in (5))" in gradients


def test_a_network_in_python_is_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "net.py", "--data", "d.npz", "--dim", "batch=8", "--epochs", "2", "-o", "t.mlc"]) == 0
    assert "2 epochs; loss" in capsys.readouterr().out
    assert run(["compile", "t.mlc", "-o", "t.tar"]) == 0
    assert run(["run", "t.tar"]) == 0
    with np.load("d.npz") as data, mlc.load_module("t.tar") as module:
        x = data["x"][:8]
        y = module.run({"x": x})["y"]
    loaded = mlc.load("t.mlc")
    parameters = {v.name: a for v, a in loaded.graph.constants.items()}
    assert not np.array_equal(parameters["w"], np.ones((3, 2)))
    np.testing.assert_array_equal(parameters["k"], np.full((2, 1), 0.5))
    np.testing.assert_allclose(y, run_graph(loaded.graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert run(["inspect", "net.py", "--graph"]) == 0
    assert "%y: f32[4,3]" in capsys.readouterr().out
    assert run(["compile", "net.py", "-o", "n.tar"]) == 0
    assert run(["run", "n.tar", "--verify", "model"]) == 0


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("ops.py", "import mlc\nx = 1 +\n", "ops.py, line 2: SyntaxError"),
        ("ops.py", "import mlc\n\nmlc.nothing\n", "ops.py, line 3: AttributeError: module 'mlc' has no"),
        ("ops.py", "x = 1\n", "ops.py: defines no operators"),
        (
            "ops.py",
            OPERATORS + "twice = mlc.operator(name='Lagged')(lambda x: x)\n",
            "two operators are called",
        ),
        ("ops.py", OPERATORS.replace("x.shape", "x.size.x"), "operator Lagged (ops.py, line 6): AttributeError"),
        ("ops.txt", OPERATORS, "ops.txt: is no Python file"),
        ("none.py", "", "none.py: there is no such file"),
    ],
)
def test_a_broken_file_is_one_message(capsys: pytest.CaptureFixture[str], file: str, text: str, message: str) -> None:
    if text:
        Path(file).write_text(text)
    assert run(["compile", "m.onnx", "--dim", "n=2", "--operators", file, "-o", "m.tar"]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("m.tar").exists()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "net.py: has no function 'network'"),
        (NETWORK, ["--dim", "width=3"], "network() takes no 'width'"),
        (NETWORK.replace("batch=4", "batch"), [], "network() needs batch"),
        (NETWORK.replace("return net", "return 1"), [], "network() gives a int"),
        (NETWORK.replace("lag=2", "lead=2"), [], "got an unexpected keyword argument 'lead'"),
        (NETWORK, ["--shape", "x:1,2"], "--shape"),
        (NETWORK, ["--operators", "ops.py"], "models of the format python call no operators"),
    ],
)
def test_a_broken_network_is_one_message(
    capsys: pytest.CaptureFixture[str], text: str, options: list[str], message: str
) -> None:
    Path("net.py").write_text(text)
    assert run(["compile", "net.py", "-o", "m.tar", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_without_the_file_the_operator_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", "m.onnx", "--dim", "n=2", "-o", "m.tar"]) == 4
    assert "--operators FILE.py" in capsys.readouterr().err
