"""Variables as explicit inputs and outputs, against LiteRT, which remembers them from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc
from mlc.cli.main import run
from mlc.errors import ImportModelError, UnsupportedError, UsageError
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.tflite.importer import import_tflite
from mlc.harness.litert import LitertReference
from mlc.ir.graph import verify
from mlc.ir.interp import run_graph
from tests.unit.frontend.tflite.writer import Op, T, const, write

START = np.array([1, -2, 3], np.float32)


def handle(out: int, name: str) -> Op:
    return Op("VAR_HANDLE", [], [out], {"Container": "", "SharedName": name}, "VarHandleOptions")


def resource() -> T:
    return T((), "int32", kind="RESOURCE")


def initial(*pairs: tuple[str, Any]) -> tuple[list[T], list[Op]]:
    """A graph that assigns stored values."""
    tensors: list[T] = []
    operators: list[Op] = []
    for name, array in pairs:
        k = len(tensors)
        tensors += [resource(), const(array, np.float32)]
        operators += [handle(k, name), Op("ASSIGN_VARIABLE", [k, k + 1], [], {}, "AssignVariableOptions")]
    return tensors, operators


def once(graph: int = 1) -> Op:
    return Op("CALL_ONCE", [], [], {"InitSubgraphIndex": graph}, "CallOnceOptions")


def counter(*, more: tuple[list[T], list[Op]] | None = None, assign: bool = True) -> bytes:
    """y = x + s, and s becomes y."""
    tensors = [T((3,), name="x"), resource(), T((3,), name="before"), T((3,), name="y")]
    operators = [
        once(), handle(1, "s"), Op("READ_VARIABLE", [1], [2], {}, "ReadVariableOptions"),
        Op("ADD", [0, 2], [3], {}, "AddOptions"),
    ]  # fmt: skip
    if assign:
        operators.append(Op("ASSIGN_VARIABLE", [1, 3], [], {}, "AssignVariableOptions"))
    return write(tensors, operators, [0], [3], more=[more or initial(("s", START))])


def runs(model: bytes, rows: list[np.ndarray]) -> list[np.ndarray]:
    """What LiteRT gives run after run."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT, the reference")
    made = interpreter.Interpreter(model_content=model)
    made.allocate_tensors()
    found = []
    for x in rows:
        made.set_tensor(made.get_input_details()[0]["index"], x)
        made.invoke()
        found.append(np.array(made.get_tensor(made.get_output_details()[0]["index"])))
    return found


def test_a_variable_is_an_input_and_an_output() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(3).astype(np.float32) for _ in range(4)]
    graph = import_tflite(counter()).graph
    verify(graph)
    assert [v.name for v in graph.inputs] == ["x", "s"]
    assert graph.output_names == ("y", "s.next")
    state = START
    for x, want in zip(rows, runs(counter(), rows), strict=True):
        found = run_graph(graph, {"x": x, "s": state})
        np.testing.assert_array_equal(found["y"], want)
        state = found["s.next"]


def test_a_module_begins_with_what_the_initialisation_assigns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, module, x = tmp_path / "m.tflite", tmp_path / "m.tar", np.array([1, 2, 4], np.float32)
    path.write_bytes(counter())
    model = mlc.load(path)
    model.save(tmp_path / "m.mlc")
    for source in (path, tmp_path / "m.mlc"):
        mlc.compile(mlc.load(source)).save(module)
        np.savez(tmp_path / "x.npz", x=x)
        command = ["run", str(module), "--inputs", str(tmp_path / "x.npz"), "--outputs", str(tmp_path / "y.npz")]
        assert run(command) == 0
        with np.load(tmp_path / "y.npz") as found:
            np.testing.assert_array_equal(found["y"], x + START)
            np.savez(tmp_path / "next.npz", x=x, s=found["s.next"])
    assert "before the first run: s" in capsys.readouterr().err
    assert run(["run", str(module), "--verify", "tflite", "--model", str(path)]) == 0
    command = ["run", str(module), "--inputs", str(tmp_path / "next.npz"), "--outputs", str(tmp_path / "z.npz")]
    assert run(command) == 0
    with np.load(tmp_path / "z.npz") as found:
        np.testing.assert_array_equal(found["y"], 2 * x + START)
    assert run(["run", str(module), "--verify", "tflite", "--model", str(path), *command[2:4]]) == 4
    assert "cannot be given 's'" in capsys.readouterr().err


def test_states_keep_their_layout_and_their_type(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(counter())
    with pytest.raises(UsageError, match="'s' is a state"):
        mlc.load(tmp_path / "m.tflite", layouts={"s": "W->W"})
    more = initial(("s", np.zeros(5)))
    with pytest.raises(ImportModelError, match=r"'s' is f32\[3\], and is initialised with f32\[5\]"):
        import_tflite(counter(more=more))


def test_one_that_only_the_initialisation_assigns_is_a_constant() -> None:
    model = counter(assign=False)
    graph = import_tflite(model).graph
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.output_names == ("y",)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], runs(model, [x])[0])


def test_one_that_is_assigned_before_it_is_read_needs_no_input() -> None:
    tensors = [T((3,), name="x"), resource(), T((3,), name="y"), resource(), T((3,), name="z")]
    operators = [
        handle(1, "s"), Op("ASSIGN_VARIABLE", [1, 0], [], {}, "AssignVariableOptions"),
        handle(3, "s"), Op("READ_VARIABLE", [3], [2], {}, "ReadVariableOptions"), Op("NEG", [2], [4], {}, "NegOptions"),
    ]  # fmt: skip
    graph = import_tflite(write(tensors, operators, [0], [4])).graph
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.output_names == ("z",)
    np.testing.assert_array_equal(run_graph(graph, {"x": START})["z"], -START)


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ([Op("READ_VARIABLE", [0], [2], {}, "ReadVariableOptions")], "the first input is no handle"),
        ([handle(1, "s"), Op("ASSIGN_VARIABLE", [1], [], {}, "AssignVariableOptions")], "2 and 0 are needed"),
        ([handle(1, "s"), Op("ASSIGN_VARIABLE", [1, -1], [], {}, "AssignVariableOptions")], "assigns nothing"),
        ([once(7)], "no graph 7 to call"),
        (
            [
                handle(1, "s"), Op("READ_VARIABLE", [1], [2], {}, "ReadVariableOptions"),
                Op("ASSIGN_VARIABLE", [1, 3], [], {}, "AssignVariableOptions"),
            ],
            r"is f32\[3\], and is assigned f32\[5\]",
        ),
    ],
)  # fmt: skip
def test_what_is_no_use_of_a_variable_is_told(operators: list[Op], said: str) -> None:
    tensors = [T((3,), name="x"), resource(), T((3,), name="y"), const(np.zeros(5, np.float32))]
    with pytest.raises(ImportModelError, match=said):
        import_tflite(write(tensors, operators, [0], [2]))


def test_the_interpreter_cannot_be_given_a_state(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT, the reference")
    (tmp_path / "m.tflite").write_bytes(counter())
    with pytest.raises(UnsupportedError, match="keeps variables to itself and cannot be given 's'"):
        LitertReference(tmp_path / "m.tflite").run({"x": START, "s": START})


def test_initialisations_that_compute_are_refused() -> None:
    tensors, operators = initial(("s", START))
    more = ([*tensors, T((3,))], [*operators, Op("NEG", [1], [2], {}, "NegOptions")])
    with pytest.raises((UnsupportedError, UnsupportedModelError), match="NEG in the graph that initialises variables"):
        import_tflite(counter(more=more))
