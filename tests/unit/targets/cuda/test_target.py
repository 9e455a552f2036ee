"""The target ``cuda`` without a GPU: its options, its text, and what NVRTC makes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from mlc.errors import MissingDependencyError, ToolchainError, UsageError
from mlc.ir.graph import Builder, Value
from mlc.rewrite.group import configured
from mlc.targets.base import get_target
from mlc.targets.cuda import arch, compiler
from mlc.targets.cuda.arch import ARCHS, DEFAULT, DEVICES
from mlc.targets.cuda.compiler import Nvrtc, compile_sources, disassembly
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import GpuProgram, Image, Resources, pack, unpack
from mlc.targets.gpu.scalars import Scalars
from tests.unit.targets.gpu.groups import CASES, Case, attention, conv, put, x

H200 = DEVICES["h200"]


def text(name: str) -> str:
    scalars = Scalars(CUDA_C)
    return source_of(scalars, [emit(kernel(Case.of(name).node, name, H200), scalars).text])


@pytest.mark.parametrize("name", ["matmul_transposed", "softmax"])
def test_text_of_a_kernel(name: str, golden: Callable[[str], None]) -> None:
    golden(text(name))


def test_text_of_strips(golden: Callable[[str], None]) -> None:
    """Two virtual threads along rows and columns, whose sums one thread adds up in turns."""
    case = Case.made("m", lambda b: [put(b, "matmul", [x(b, 64, 32), x(b, 32, 64, name="w")])])
    config = {"rows": 4, "columns": 8, "ty": 4, "tx": 4, "depth": 8, "vy": 2, "vx": 2, "versions": 1}
    scalars = Scalars(CUDA_C)
    golden(source_of(scalars, [emit(kernel(configured(case.node, config), "strips", H200), scalars).text]))


def test_every_template_compiles_without_spilling() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    scalars = Scalars(CUDA_C)
    names = [n for n in CASES if n != "join"]
    source = source_of(scalars, [emit(kernel(Case.of(n).node, n, H200), scalars).text for n in names])
    for image in compile_sources({"sm_75": source, "sm_90": source}).values():
        assert image.code[:4] == b"\x7fELF"
        assert f".target {image.arch}".encode() in image.assembly
        assert set(names) <= {k.rsplit("_", 1)[0] for k in image.resources}
        assert not [k for k, r in image.resources.items() if r.spill_stores or r.spill_loads]


def rectified(data: tuple[int, ...], weights: tuple[int, ...], groups: int = 1, *, residual: bool = False) -> Case:
    """A convolution of single pixels with what follows it in SqueezeNet and ShuffleNet."""

    def make(b: Builder) -> Sequence[Value]:
        y = put(b, "add", [conv(b, data, weights, groups=groups, pad=0), x(b, weights[0], 1, 1, name="bias")])
        y = put(b, "add", [y, x(b, *y.type.shape, name="other")]) if residual else y
        return [put(b, "relu", [y])]

    return Case.made("conv_add_relu", make)


SQUEEZE = rectified((1, 16, 55, 55), (64, 16, 1, 1))
SHUFFLE = (
    rectified((1, 240, 28, 28), (60, 80, 1, 1), groups=3),
    rectified((1, 120, 14, 14), (480, 40, 1, 1), groups=3, residual=True),
)


def test_ragged_terms_and_pixels_do_not_spill() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    scalars = Scalars(CUDA_C)
    fns = [kernel(case.node, f"k{n}", H200) for n, case in enumerate((SQUEEZE, *SHUFFLE))]
    source = source_of(scalars, [emit(fn, scalars).text for fn in fns])
    for arch_ in DEFAULT:
        assert not [r for r in Nvrtc.find().compile(source, arch_).resources.values() if r.spill_stores]


def test_heads_of_a_transformer_do_not_spill() -> None:
    """The compiler left to itself writes out so many keys that their operands fill all registers."""
    pytest.importorskip("cuda.bindings.nvrtc")
    case = Case.made("attention", lambda b: attention(b, 12, 128, 128, 64, 64, mask=True))
    scalars = Scalars(CUDA_C)
    for device, arch_ in (("t4", "sm_75"), ("a100", "sm_80"), ("h200", "sm_90")):
        text = source_of(scalars, [emit(kernel(case.node, "k", DEVICES[device]), scalars).text])
        assert "#pragma unroll 4" in text
        assert not [r for r in Nvrtc.find().compile(text, arch_).resources.values() if r.spill_stores]


def test_what_spills_for_one_more_block_is_compiled_again() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    config = {"rows": 2, "columns": 2, "ty": 4, "tx": 16, "depth": 16, "versions": 1}
    scalars = Scalars(CUDA_C)
    source = source_of(scalars, [emit(kernel(configured(SQUEEZE.node, config), "k", H200), scalars).text])
    (left_alone,) = Nvrtc.find().compile(source, "sm_80").resources.values()
    image = compile_sources({"sm_80": source})["sm_80"]
    (found,) = image.resources.values()
    assert left_alone.spill_stores
    assert not found.spill_stores
    assert found.registers > left_alone.registers


def test_vectors_are_one_access() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = CUDA_C.preamble + (
        'extern "C" __global__ void k(float* __restrict__ o, const float* __restrict__ a) {\n'
        "  const mlc_vector<float, 4> v = *(const mlc_vector<float, 4>*)(a + 4 * threadIdx.x);\n"
        "  *(mlc_vector<float, 4>*)(o + 4 * threadIdx.x) = mlc_pack<float>(v.at[3], v.at[2], v.at[1], v.at[0]);\n}\n"
    )
    image = compile_sources({"sm_80": source})["sm_80"]
    assert b"ld.global.nc.v4" in image.assembly
    assert b"st.global.v4" in image.assembly


def test_blocks_beyond_what_an_axis_holds_are_counted_along_x() -> None:
    from dataclasses import replace

    few = Scalars(replace(CUDA_C, blocks=(1 << 30, 1, 1)))
    fn = kernel(Case.of("matmul").node, "k", DEVICES["t4"])
    usual, flat = emit(fn, Scalars(CUDA_C)).launches[0], emit(fn, few)
    x, y, z = usual.grid
    assert y > 1
    assert flat.launches[0].grid == (x * y * z, 1, 1)
    assert f"blockIdx.x / {x} % {y};" in flat.text


def test_machine_code_can_be_read() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = 'extern "C" __global__ void twice(float* a) { a[threadIdx.x] *= 2; }'
    image = compile_sources({"sm_90": source})["sm_90"]
    try:
        found = disassembly(image.code)
    except MissingDependencyError as error:
        pytest.skip(error.message)
    assert "FADD" in found or "FMUL" in found


def test_images_are_kept_in_a_program() -> None:
    image = Image("sm_80", b"code", b"assembly", {"k": Resources(40, 8, 4, 12, 512)})
    (program,) = unpack(pack([GpuProgram("s", (), (), [], 0, 0, 0, 0, (image,))]))
    (found,) = program.images
    assert (found.arch, found.code, found.assembly, found.resources) == (
        image.arch, image.code, image.assembly, image.resources,
    )  # fmt: skip


def test_options_are_kept() -> None:
    said = str(get_target("cuda -arch=sm_75,sm_90 -mcpu=haswell").describe()["string"])
    assert said.startswith("cuda -arch=sm_75,sm_90 -device=t4,h200 -host=x86 -mcpu=haswell")


def test_unless_named_the_architecture_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, archs in (((), DEFAULT), (("sm_89",), ("sm_89",))):
        monkeypatch.setattr("mlc.targets.cuda.target.installed", lambda here=here: here)
        assert get_target("cuda").archs == archs  # type: ignore[attr-defined]


def test_a_machine_without_a_gpu_has_no_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **settings: object) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(arch.subprocess, "run", fails)
    arch.installed.cache_clear()
    assert arch.installed() == ()


@pytest.mark.parametrize(
    "threads, registers, shared, share",
    [(256, 32, 0, 1.0), (256, 128, 0, 0.25), (1024, 32, 48 << 10, 1.0), (32, 16, 0, 0.5), (128, 32, 100 << 10, 0.125)],
)
def test_occupancy_is_what_is_scarce(threads: int, registers: int, shared: int, share: float) -> None:
    assert ARCHS["sm_90"].occupancy(threads, registers, shared) == share


def test_peaks_of_tensor_cores_are_those_of_the_types() -> None:
    assert [H200.tensor_peak(t) for t in ("f16", "bf16", "f32", "i8", "u8")] == [
        989400, 989400, 494700, 1978900, 1978900,
    ]  # fmt: skip
    assert DEVICES["b300"].tensor_peak("i8") < DEVICES["b300"].tensor_peak("f16")  # which has hardly any for bytes


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "target, message, hint",
    [
        ("cuda -arch=sm_42", "unknown architecture 'sm_42'", "known: sm_75, sm_80"),
        ("cuda -arch=sm_80,", "unknown architecture ''", "known: sm_75"),
        ("cuda -device=voodoo2", "unknown device 'voodoo2'", "a100"),
        ("cuda -arch=sm_80 -device=h200", "h200 is sm_90, which is not in -arch", "-arch=sm_90"),
        ("cuda -host=cuda", "the host is cuda itself", "-host=x86"),
        ("cuda -mcpu=z80", "target cuda: .*z80", "cuda itself has -arch"),
    ],
)
def test_bad_options_are_refused(target: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        get_target(target)
    assert hint in caught.value.hint


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependencyError, match="compiling for cuda needs NVRTC") as caught:
        compile_sources({"sm_80": ""})
    assert caught.value.hint == "pip install 'mlc[cuda]'"


def test_a_missing_disassembler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia", None)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler.Path, "is_file", lambda path: False)
    with pytest.raises(MissingDependencyError, match="nvdisasm, which is not here"):
        disassembly(b"")


def test_what_the_compiler_refuses_is_told() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(ToolchainError, match=r"NVRTC refuses the kernels for sm_80: .*nonsense"):
        compile_sources({"sm_80": "nonsense"})
    with pytest.raises(ToolchainError, match=r"NVRTC refuses the kernels for sm_80: [^|]*: error: "):
        compile_sources({"sm_80": "__global__ void k() { int unused; }\nint a = nothing;"})
    with pytest.raises(ToolchainError, match="does not compile for sm_35"):
        Nvrtc.find().compile("", "sm_35")
    with pytest.raises(ToolchainError, match="nvdisasm failed"):
        disassembly(b"no machine code")
