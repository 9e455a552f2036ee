"""The executor: right results, clear refusals, and a clean end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import DeviceError, PackageError, UsageError
from mlc.runtime import Module, StepSpec, TensorSpec, load_module
from mlc.runtime.buffers import address, aligned_empty
from mlc.runtime.dtypes import numpy_dtype
from tests.unit.runtime.conftest import Parts

W = np.arange(1, 6, dtype=np.float32)

# Two inputs of no elements, and none at all, take the same code: it writes 7 to the first element of output 1.
CONSTANT = """
define i32 @mlc_run(ptr %i, ptr %outputs, ptr %p, ptr %w, ptr %pool) {
  %slot = getelementptr ptr, ptr %outputs, i64 1
  %y = load ptr, ptr %slot
  store float 7.0, ptr %y
  ret i32 0
}
define void @mlc_step(ptr %i, ptr %o, ptr %p, ptr %w, ptr %pool, i64 %n) {
  ret void
}
define void @mlc_profile(ptr %i, ptr %o, ptr %p, ptr %w, ptr %pool, ptr %ns) {
  ret void
}
"""


def example(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, 5), np.float32)


@pytest.fixture
def module(handmade_tar: Path) -> Iterator[Module]:
    with load_module(handmade_tar, threads=2) as module:
        yield module


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_run_gives_the_model_s_result_on_any_number_of_threads(handmade_tar: Path, threads: int | None) -> None:
    with load_module(handmade_tar, threads) as module:
        assert module.threads == (threads or len(os.sched_getaffinity(0)))
        assert (module.input_names, module.output_names) == (("x",), ("y",))
        for seed in range(3):
            result = module.run({"x": example(seed)})
            assert list(result) == ["y"]
            np.testing.assert_array_equal(result["y"], example(seed) * W + np.float32(0.5))


def test_outputs_are_fresh_and_aligned(module: Module) -> None:
    first, second = module.run({"x": example(0)})["y"], module.run({"x": example(1)})["y"]
    np.testing.assert_array_equal(first, example(0) * W + np.float32(0.5))
    assert not np.shares_memory(first, second)
    assert address(first) % 64 == address(second) % 64 == 0


def test_given_outputs_are_used(module: Module) -> None:
    out = np.zeros((3, 5), np.float32)
    assert module.run({"x": example()}, {"y": out})["y"] is out
    np.testing.assert_array_equal(out, example() * W + np.float32(0.5))


def test_strided_and_unaligned_inputs_are_taken(module: Module) -> None:
    expected = example() * W + np.float32(0.5)
    unaligned = np.frombuffer(b"\0" + example().tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 5)
    for x in (np.asfortranarray(example()), np.repeat(example(), 2, axis=1)[:, ::2], unaligned):
        np.testing.assert_array_equal(module.run({"x": x})["y"], expected)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({}, "input 'x' is missing"),
        ({"x": example(), "z": 1}, "unknown input 'z'"),
        ({"x": example().astype(np.float64)}, r"input 'x': expected f32\[3,5\], got f64\[3,5\]"),
        ({"x": example().astype(">f4")}, r"input 'x': expected f32\[3,5\], got >f4\[3,5\]"),
        ({"x": [[1.0] * 5] * 3}, r"input 'x': expected f32\[3,5\], got f64\[3,5\]"),
        ({"x": np.full((3, 5), "a")}, r"input 'x': expected f32\[3,5\], got str32\[3,5\]"),
        ({"x": example().T}, r"input 'x': expected f32\[3,5\], got f32\[5,3\]"),
        ({"x": np.float32(1)}, r"input 'x': expected f32\[3,5\], got f32\[\]"),
        ([example()], "expected a mapping from input names to arrays, got list"),
    ],
)
def test_unfit_inputs_are_refused_by_name(module: Module, inputs: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        module.run(inputs)
    assert caught.value.hint or isinstance(inputs, list)


def test_hints_say_what_to_do(module: Module) -> None:
    with pytest.raises(UsageError) as caught:
        module.run({"x": example().astype(np.float64)})
    assert caught.value.hint == "convert the array with .astype('float32')"
    with pytest.raises(UsageError) as caught:
        module.run({})
    assert caught.value.hint == "the model's inputs: 'x' f32[3,5]"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x: {"z": x}, "unknown output 'z'"),
        (lambda x: {"y": [1.0]}, "output 'y': expected a numpy array, got list"),
        (lambda x: {"y": np.zeros((5, 3), np.float32)}, r"output 'y': expected f32\[3,5\], got f32\[5,3\]"),
        (lambda x: {"y": np.zeros((5, 3), np.float32).T}, "output 'y': the array must be contiguous"),
        (lambda x: {"y": np.broadcast_to(np.float32(0), (3, 5))}, "output 'y': the array must be contiguous"),
        (lambda x: {"y": x}, "output 'y': the array shares memory"),
    ],
)
def test_unfit_outputs_are_refused_by_name(module: Module, make: Callable, message: str) -> None:
    x = example()
    with pytest.raises(UsageError, match=message):
        module.run({"x": x}, make(x))


def test_models_without_inputs_and_with_empty_tensors_run(make_package: Callable, tmp_path: Path) -> None:
    outputs = (TensorSpec("none", "i64", (0, 4)), TensorSpec("seven", "f32", ()))
    for inputs in ((), (TensorSpec("a", "bool", (0,)), TensorSpec("b", "bf16", (3, 0)))):
        parts = make_package(CONSTANT, inputs, outputs)
        with load_module(parts.write(tmp_path / "module.tar"), 1) as module:
            values = {spec.name: np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in inputs}
            result = module.run(values)
            assert result["none"].shape == (0, 4)
            assert result["seven"] == np.float32(7)
            assert module.benchmark(values, 1, 0.0)
            assert module.profile(values, 2) == []
            assert list(module.trace(values)) == []


def test_scalar_inputs_may_be_numpy_scalars(make_package: Callable, tmp_path: Path) -> None:
    outputs = (TensorSpec("none", "i64", (0,)), TensorSpec("seven", "f32", (1,)))
    parts = make_package(CONSTANT, (TensorSpec("a", "i32", ()),), outputs)
    with load_module(parts.write(tmp_path / "module.tar"), 1) as module:
        assert module.run({"a": np.int32(3)})["seven"] == 7
        with pytest.raises(UsageError, match=r"expected i32\[\], got i64\[\]"):
            module.run({"a": 3})


def test_benchmark_counts_runs(module: Module) -> None:
    times = module.benchmark({"x": example()}, warmup=2, min_seconds=10.0, max_runs=20)
    assert len(times) == 20
    assert min(times) > 0
    assert len(module.benchmark({"x": example()}, warmup=0, min_seconds=0.0)) == 1


def test_profile_names_each_step(module: Module) -> None:
    times = module.profile({"x": example()}, repeats=5)
    assert [time.step.kernel for time in times] == ["scale", "shift"]
    assert all(len(time.ns) == 5 and 0 < time.min_ns <= time.median_ns for time in times)


def test_trace_gives_logical_results_after_each_step(module: Module) -> None:
    x = example()
    trace = module.trace({"x": x})
    step, results = next(trace)
    assert isinstance(step, StepSpec)
    assert step.sources == ("Mul_0",)
    np.testing.assert_array_equal(results["t"], x * W)
    # The module may be run in between; the trace has memory of its own.
    module.run({"x": -x})
    step, later = next(trace)
    np.testing.assert_array_equal(later["y"], x * W + np.float32(0.5))
    np.testing.assert_array_equal(results["t"], x * W)
    assert next(trace, None) is None


def test_trace_checks_its_inputs_at_once(module: Module) -> None:
    with pytest.raises(UsageError, match="missing"):
        module.trace({})


def test_several_threads_may_run_one_module(module: Module) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = example(seed)
            for _ in range(200):
                np.testing.assert_array_equal(module.run({"x": x})["y"], x * W + np.float32(0.5))
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_closing_twice_is_fine_and_use_afterwards_is_refused(handmade_tar: Path) -> None:
    module = load_module(handmade_tar, 2)
    trace = module.trace({"x": example()})
    module.close()
    module.close()
    for use in (module.run, module.benchmark, module.profile, lambda x: next(trace)):
        with pytest.raises(UsageError, match="the module was closed"):
            use({"x": example()})


def test_modules_can_be_loaded_and_dropped_many_times(handmade_tar: Path) -> None:
    for i in range(20):
        module = load_module(handmade_tar, 1 + i % 3)
        module.run({"x": example()})
        del module
    gc.collect()


def test_two_modules_live_side_by_side(handmade_tar: Path) -> None:
    with load_module(handmade_tar, 2) as a, load_module(handmade_tar, 1) as b:
        np.testing.assert_array_equal(a.run({"x": example()})["y"], b.run({"x": example()})["y"])


def test_interpreter_may_end_with_modules_open(handmade_tar: Path) -> None:
    program = f"""
        import atexit, numpy as np, sys, weakref
        weakref.finalize(atexit, print)  # so that our own end comes after llvmlite's
        from mlc.runtime import load_module
        kept = load_module({str(handmade_tar)!r}, 2)
        cycle = [load_module({str(handmade_tar)!r}, 3)]
        cycle.append(cycle)
        kept.run({{"x": np.zeros((3, 5), np.float32)}})
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_forked_child_is_refused_but_can_end(module: Module) -> None:
    module.run({"x": example()})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            module.run({"x": example()})
        except UsageError as error:
            code = 0 if "another process" in str(error) else 2
        module.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    module.run({"x": example()})


@pytest.mark.parametrize("threads", [0, -1, 1025, True, 1.5, "2"])
def test_a_senseless_number_of_threads_is_refused(handmade_tar: Path, threads: object) -> None:
    with pytest.raises(UsageError, match="threads must be an integer from 1 to 1024"):
        load_module(handmade_tar, threads)


def test_threads_that_cannot_be_started_are_an_error(handmade_tar: Path) -> None:
    program = f"""
        import resource, sys
        from mlc.errors import DeviceError
        from mlc.runtime import load_module
        load_module({str(handmade_tar)!r}, 1).close()
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # too little for the stacks of 1024 threads
        try:
            load_module({str(handmade_tar)!r}, 1024)
        except DeviceError as error:
            sys.exit("cannot start a pool of 1024 threads" not in str(error))
        sys.exit(2)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60).returncode == 0


def test_a_missing_cpu_feature_is_named(handmade: object, tmp_path: Path) -> None:
    target = replace(handmade.manifest.target, features=("sse2", "warp-drive"))
    path = handmade.but(target=target).write(tmp_path / "m.tar")
    with pytest.raises(DeviceError, match=r"m\.tar: this CPU \(.*\) lacks warp-drive, which the module uses"):
        load_module(path)


def test_another_architecture_is_named(handmade: object, tmp_path: Path) -> None:
    target = replace(handmade.manifest.target, triple="riscv64-unknown-linux-gnu")
    path = handmade.but(target=target).write(tmp_path / "m.tar")
    with pytest.raises(DeviceError, match=r"m\.tar: the module was compiled for riscv64, and this machine is"):
        load_module(path)


def test_a_workspace_beyond_the_machine_is_refused(handmade: object, tmp_path: Path) -> None:
    for nbytes in (1 << 60, (1 << 63) - 1):
        memory = replace(handmade.manifest.memory, workspace_bytes=nbytes)
        path = handmade.but(memory=memory).write(tmp_path / "m.tar")
        with pytest.raises(DeviceError, match=r"m\.tar: the model needs \d+ bytes of working memory"):
            load_module(path)


def test_code_that_cannot_be_linked_is_refused(handmade: object, compile_ir: Callable, tmp_path: Path) -> None:
    lacking = compile_ir("define i32 @mlc_run() {\n  ret i32 0\n}")
    for code in (b"not an object", lacking):
        parts = replace(handmade, members={**handmade.members, "lib/model.o": code})
        with pytest.raises(PackageError, match=r"m\.tar: lib/model\.o: cannot be linked"):
            load_module(parts.write(tmp_path / "m.tar"))


def test_a_package_without_code_is_refused(handmade: object, tmp_path: Path) -> None:
    parts = replace(handmade, members={"graph.txt": b""})
    with pytest.raises(PackageError, match=r"m\.tar: lib/model\.o: is not in the package"):
        load_module(parts.write(tmp_path / "m.tar"))


def test_a_model_that_fails_is_an_error(make_package: Callable, tmp_path: Path) -> None:
    parts = make_package(CONSTANT.replace("ret i32 0", "ret i32 3"), (), (TensorSpec("a", "f32", ()),) * 1)
    manifest = replace(parts.manifest, outputs=(TensorSpec("a", "f32", ()), TensorSpec("b", "f32", ())))
    path = replace(parts, manifest=manifest).write(tmp_path / "m.tar")
    with load_module(path, 1) as module, pytest.raises(DeviceError, match="the model stopped with code 3"):
        module.run({})


def test_aligned_arrays_are_aligned() -> None:
    for shape in ((), (0,), (3, 5), (1, 7)) * 20:
        array = aligned_empty(shape, np.float32)
        assert array.shape == shape
        assert address(array) % 64 == 0
        assert array.flags.c_contiguous


def test_importing_the_runtime_does_not_import_llvm() -> None:
    program = "import sys, mlc.runtime; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.parametrize(
    "at, value, message",
    [
        (0, b"no object", "it is no ELF object"),
        (18, (183).to_bytes(2, "little"), "of machine 183"),
        (16, (3).to_bytes(2, "little"), "type 3"),
        (4, b"\x01", "not an object for this machine"),
    ],
)
def test_an_object_of_another_machine_is_refused(
    handmade: Parts, tmp_path: Path, at: int, value: bytes, message: str
) -> None:
    code = bytearray(handmade.members["lib/model.o"])
    code[at : at + len(value)] = value
    path = replace(handmade, members={**handmade.members, "lib/model.o": bytes(code)}).write(tmp_path / "m.tar")
    with pytest.raises(PackageError, match=message):
        load_module(path)


def test_an_output_may_be_written_over_the_input_whose_next_value_it_is(handmade: object, tmp_path: Path) -> None:
    with load_module(handmade.but(updates={"y": "x"}).write(tmp_path / "m.tar"), 1) as module:
        assert module.manifest.updates == {"y": "x"}
        x = example()
        expected = module.run({"x": x})["y"]
        moved = np.concatenate([x.reshape(-1), np.zeros(1, x.dtype)])
        with pytest.raises(UsageError, match="shares memory"):
            module.run({"x": moved[:-1].reshape(x.shape)}, {"y": moved[1:].reshape(x.shape)})
        assert module.run({"x": x}, {"y": x})["y"] is x
        np.testing.assert_array_equal(x, expected)
