"""The zoo in PyTorch computes what onnxruntime computes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import onnx
import onnxruntime
import pytest

from benchmarks.command import GROUPS
from benchmarks.gpu.command import NETWORKS
from benchmarks.stats import largest_error
from benchmarks.zoo import build, sample_inputs

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def torch() -> ModuleType:
    """PyTorch, which takes seconds to import, so not while tests are collected."""
    found: ModuleType = pytest.importorskip("torch", reason="torch comes with the extra bench")
    return found


@pytest.mark.parametrize("name", [*GROUPS["networks"], "C4", "D2", "MM1", "BMM2"])
def test_modules_compute_what_onnxruntime_computes(torch: ModuleType, name: str, tmp_path: Path) -> None:
    from benchmarks.peers.torch_graph import OnnxModule

    model = build(name, small=True)
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    inputs = sample_inputs(model)
    module = OnnxModule(file).eval()
    with torch.no_grad():
        results = module(*(torch.from_numpy(inputs[name]) for name in module.inputs))
    outputs = dict(zip(module.results, (tensor.numpy() for tensor in results), strict=True))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    expected = dict(zip(module.results, session.run(module.results, inputs), strict=True))
    assert largest_error(outputs, expected) < 1e-4


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", [*NETWORKS, "C4", "D2", "MM1", "BMM2"])
def test_nothing_is_left_behind_where_a_module_goes(torch: ModuleType, name: str, half: bool, tmp_path: Path) -> None:
    """To a device that only knows shapes: it refuses operands that are elsewhere, or of another type, as a GPU does."""
    from benchmarks.peers.torch_graph import OnnxModule

    model = build(name, small=True)
    onnx.save(model, tmp_path / "model.onnx")
    inputs = sample_inputs(model)
    module = OnnxModule(tmp_path / "model.onnx", half=half).eval().to("meta")
    given = [torch.from_numpy(inputs[name]).to("meta") for name in module.inputs]
    with torch.no_grad():
        results = module(*(t.half() if half and t.is_floating_point() else t for t in given))
    assert {t.device.type for t in results} == {"meta"}
    assert not half or all(t.dtype is torch.float16 for t in results)


def test_an_operator_without_a_counterpart_is_named(tmp_path: Path) -> None:
    from benchmarks.peers.torch_graph import OnnxModule

    node = onnx.helper.make_node("NonZero", ["x"], ["y"])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, [2])], [value("y", 7, [1, None])])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(NotImplementedError, match="NonZero"):
        OnnxModule(tmp_path / "model.onnx")
