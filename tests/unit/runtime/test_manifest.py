"""``module.json``: what is written can be read, and whatever is wrong is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import PackageError
from mlc.runtime.dtypes import ELEMENTS, describe, numpy_dtype
from mlc.runtime.layout import Physical
from mlc.runtime.manifest import Manifest, MemberSpec, MemorySpec, ModelSpec, StepSpec, TargetSpec
from mlc.runtime.tensor_spec import PRECISIONS, ParamSpec, ResultSpec, TensorSpec
from tests.fuzz import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
dtypes = st.sampled_from(sorted(ELEMENTS))
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
counts = st.integers(0, (1 << 63) - 1)
sums = st.text("0123456789abcdef", min_size=64, max_size=64)
tensors = st.builds(TensorSpec, texts, dtypes, shapes)


PART: dict[str, object] = {"kernel": "k", "sources": [], "flops": 1, "bytes": 8, "results": []}


def unique(specs: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(specs, max_size=3, unique_by=lambda spec: spec.name).map(tuple)


@st.composite
def physicals(draw: st.DrawFn, shape: tuple[int, ...]) -> Physical:
    """A layout that pads and permutes a logical shape."""
    padded = tuple(extent + draw(st.integers(0, 3)) for extent in shape)
    order = draw(st.permutations(range(len(shape))))
    back = tuple(int(i) for i in np.argsort(order))
    physical = tuple(padded[i] for i in order)
    slices = tuple((0, extent) for extent in shape)
    return Physical(draw(texts), (1, *physical), (("reshape", physical), ("transpose", back), ("slice", slices)))


@st.composite
def results(draw: st.DrawFn) -> ResultSpec:
    shape = draw(shapes)
    physical = draw(st.none() | physicals(shape))
    return ResultSpec(draw(texts), draw(dtypes), shape, "workspace", draw(st.integers(0, 100)), 0, physical)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = st.lists(texts, max_size=2).map(tuple)
    part = st.builds(StepSpec, texts, names, counts, counts, st.just(()))
    steps = st.builds(StepSpec, texts, names, counts, counts, unique(results()), st.none())
    loops = st.builds(replace, steps, parts=st.lists(part, min_size=1, max_size=2).map(tuple), rounds=counts)
    params = [ParamSpec(t.name, t.dtype, t.shape, 64 * i) for i, t in enumerate(draw(unique(tensors)))]
    members = draw(st.dictionaries(texts, st.builds(MemberSpec, sums, counts), max_size=3))
    return Manifest(
        draw(texts),
        draw(
            st.builds(
                TargetSpec, texts, texts, texts, st.lists(texts).map(tuple), st.dictionaries(texts, texts, max_size=2)
            )
        ),
        draw(st.builds(ModelSpec, texts, sums, texts)),
        draw(unique(tensors)),
        draw(unique(tensors)),
        draw(st.lists(st.one_of(steps, loops), max_size=3).map(tuple)),
        MemorySpec(1 << 30, 1 << 30),
        tuple(params),
        members,
        draw(st.none() | st.sampled_from(sorted(members))) if members else None,
        precision=draw(st.dictionaries(texts, st.sampled_from(PRECISIONS), max_size=2)),
    )


@given(manifests())
@examples(60)
def test_every_manifest_comes_back(manifest: Manifest) -> None:
    assert Manifest.from_text(manifest.to_text()) == manifest
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_updates_are_of_equal_types_and_each_of_an_input_of_its_own(handmade: Any) -> None:
    manifest = replace(handmade.manifest, updates={"y": "x"})
    assert Manifest.from_text(manifest.to_text()) == manifest
    spec = handmade.manifest.inputs[0]
    with pytest.raises(PackageError, match=r"updates\.y: expected an input that is f32\[3,5\], got 'x'"):
        replace(manifest, inputs=(replace(spec, shape=(5, 3)),)).check()
    twice = replace(manifest, outputs=(*manifest.outputs, replace(spec, name="z")), updates={"y": "x", "z": "x"})
    with pytest.raises(PackageError, match="updates: expected an input at most once"):
        twice.check()


def test_another_formatting_of_the_text_is_the_same_manifest(handmade: Any) -> None:
    text = json.dumps(json.loads(handmade.manifest.to_text()), indent=3, sort_keys=True).encode()
    assert Manifest.from_text(text) == handmade.manifest


def test_the_text_has_a_line_for_each_item(handmade: Any) -> None:
    lines = handmade.manifest.to_text().decode().splitlines()
    assert sum('"kernel"' in line for line in lines) == 2
    assert max(map(len, lines)) < 400


MISSING = object()


def edited(manifest: Manifest, path: str, value: object) -> dict:
    """The manifest's JSON with the field at a dotted path set, or removed."""
    body = copy.deepcopy(manifest.to_json())
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place: Any = body
    for key in parents:
        place = place[key]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return body


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("format_version", 4, "format version 4 is newer than the 3 that this mlc reads"),
        ("symbols", "my model", "symbols: expected the beginning of a C identifier, got 'my model'"),
        ("format_version", 0, "format_version: expected at least 1, got 0"),
        ("format_version", "1", "format_version: expected an integer from 0"),
        ("mlc_version", MISSING, "mlc_version: is missing"),
        ("mlc_version", 1, "mlc_version: expected a string, got 1"),
        ("mlc_version", "\ud800", "mlc_version: expected a string of Unicode characters"),
        ("extra", 1, "extra: is not a field that this version knows"),
        ("inputs.0.extra", 1, r"inputs\[0\]\.extra: is not a field"),
        ("target", [], r"target: expected an object, got \[\]"),
        ("target.details", 3, "target.details: expected an object, got 3"),
        ("target.details.x", 3, "target.details.x: expected a string, got 3"),
        ("target.features", "avx", "target.features: expected a list, got 'avx'"),
        ("model.sha256", "abc", "model.sha256: expected a SHA-256 of 64 hexadecimal digits, got 'abc'"),
        ("model.constants", [{"name": "s", "dtype": "i16", "shape": [1], "data": "0g"}], "bytes in hexadecimal"),
        ("model.constants", [{"name": "s", "dtype": "i16", "shape": [1], "data": "00"}], "expected 2 bytes in hexa"),
        ("inputs.0.dtype", "f33", r"inputs\[0\]\.dtype: expected one of f64 f32 .*, got 'f33'"),
        ("inputs.0.dtype", [], r"inputs\[0\]\.dtype: expected one of"),
        ("inputs.0.shape", [3, -1], r"inputs\[0\]\.shape\[1\]: expected an integer from 0 to 2\^63 - 1, got -1"),
        ("inputs.0.shape", [3, True], r"inputs\[0\]\.shape\[1\]: expected an integer"),
        ("inputs.0.shape", [3, 1.5], r"inputs\[0\]\.shape\[1\]: expected an integer"),
        ("inputs.0.shape", [1 << 40, 1 << 40], r"inputs\[0\]\.shape: expected an integer from 0"),
        ("inputs", [{"name": "a", "dtype": "f32", "shape": []}] * 2, r"inputs\[1\]\.name: 'a' occurs twice"),
        ("inputs.0.shape", [1] * 100, r"inputs\[0\]\.shape: expected 32 integers at most, got 100"),
        ("precision", {"y": "coarse"}, "precision.y: expected one of float64 float32 .*, got 'coarse'"),
        ("updates", {"y": "z"}, "updates: expected names of outputs and inputs, got 'y: z'"),
        ("updates", {"y": 1}, "updates.y: expected a string, got 1"),
        ("memory.alignment", 32, "memory.alignment: expected 64, got 32"),
        ("module_so", "lib/model.so", "module_so: expected the name of a member, got 'lib/model.so'"),
        ("members", {"x": {"sha256": "", "size": 1}}, "members.x.sha256: expected a SHA-256"),
        ("params.1.offset", 65, r"params\[1\]\.offset: expected a multiple of 64, got 65"),
        ("params.1.offset", 128, r"params\[1\]: bytes 128 to 148 lie outside a space of 128 bytes"),
        ("steps.0.flops", -1, r"steps\[0\]\.flops: expected an integer"),
        ("steps.0.parts", [PART | {"bytes": "8"}], r"steps\[0\]\.parts\[0\]\.bytes: expected an integer"),
        ("steps.0.parts", [PART | {"parts": []}], r"steps\[0\]\.parts\[0\]"),
        ("steps.0.parts", [PART], r"steps\[0\]\.rounds"),
        (
            "steps.0.results.0.space",
            "heap",
            r"steps\[0\]\.results\[0\]\.space: expected one of workspace .*, got 'heap'",
        ),
        ("steps.0.results.0.offset", 65, r"steps\[0\]\.results\[0\]: bytes 65 to 145 lie outside a space of 144 bytes"),
        ("steps.1.results.0.index", 1, r"steps\[1\]\.results\[0\]\.index: expected less than 1, got 1"),
        (
            "steps.0.results.0.physical.unpack",
            [["flip", []]],
            r"unpack\[0\]: expected reshape, transpose, slice or fold",
        ),
        ("steps.0.results.0.physical.unpack", [[]], r"unpack\[0\]: expected a pair of a step and its argument"),
        ("steps.0.results.0.physical.unpack", [["slice", [1]]], r"unpack\[0\]\[0\]: expected a pair of begin and end"),
        (
            "steps.0.results.0.physical.unpack",
            [["slice", [[0, 6], [0, 1]]]],
            r"steps\[0\]\.results\[0\]\.physical\.unpack\[0\]: slice .* does not fit shape \[5, 4\]",
        ),
        ("steps.0.results.0.physical.unpack", [["transpose", [1, 1]]], r"unpack\[0\]: transpose \[1, 1\] does not fit"),
        ("steps.0.results.0.physical.unpack", [["reshape", [21]]], r"unpack\[0\]: reshape \[21\] does not fit"),
        ("steps.0.results.0.physical.unpack", [], r"expected steps that lead to shape \[3, 5\], got \[5, 4\]"),
    ],
)
def test_a_wrong_field_is_named(handmade: Any, path: str, value: object, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        Manifest.from_json(edited(handmade.manifest, path, value))


def test_a_long_wrong_value_is_cut_in_the_message(handmade: Any) -> None:
    with pytest.raises(PackageError) as caught:
        Manifest.from_json(edited(handmade.manifest, "model.sha256", "x" * 10_000))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:-3], "is not JSON"),
        (lambda text: b"\xff" + text, "is not JSON"),
        (lambda text: b"[" * 100_000, "is not JSON"),
        (lambda text: text.replace(b"15,", b"NaN,"), "is not JSON: NaN is not allowed"),
        (lambda text: text.replace(b"15,", b"9" * 5000 + b","), "is not JSON"),
        (lambda text: text.replace(b"140", b"141"), "does not match its checksum"),
        (lambda text: b"[]", r"the whole: expected an object, got \[\]"),
        (lambda text: b'{"format_version": 1}', "checksum: is missing"),
        (lambda text: b'{"format_version": 7, "new": 1}', "format version 7 is newer"),
    ],
)
def test_altered_text_is_refused(handmade: Any, change: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(PackageError, match=message):
        Manifest.from_text(change(handmade.manifest.to_text()))


def test_undoing_a_blocked_layout_gives_the_logical_array() -> None:
    x = np.arange(60, dtype=np.int32).reshape(1, 20, 3)
    blocked = np.pad(x, ((0, 0), (0, 12), (0, 0))).reshape(1, 2, 16, 3).transpose(0, 1, 3, 2).copy()
    physical = Physical(
        "NC16c",
        (1, 2, 3, 16),
        (("transpose", (0, 1, 3, 2)), ("reshape", (1, 32, 3)), ("slice", ((0, 1), (0, 20), (0, 3)))),
    )
    assert physical.logical_shape() == (1, 20, 3)
    np.testing.assert_array_equal(physical.undo(blocked.reshape(-1)), x)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_element_types_agree_with_numpy(name: str) -> None:
    assert numpy_dtype(name).itemsize == ELEMENTS[name].itemsize
    assert describe(numpy_dtype(name), (2, 3)) == f"{name}[2,3]"


def test_a_target_from_the_facts_it_states() -> None:
    facts = {"string": "x86 -mcpu=k8", "triple": "x86_64", "cpu": "k8", "features": ["sse2"], "lanes": 4}
    assert TargetSpec.from_facts(facts) == TargetSpec("x86 -mcpu=k8", "x86_64", "k8", ("sse2",), {"lanes": "4"})


def test_packages_of_earlier_versions_export_mlc_run(handmade: Any) -> None:
    for version in (1, 2):
        body = edited(handmade.manifest, "format_version", version)
        assert Manifest.from_json({k: v for k, v in body.items() if k != "symbols"}).symbols == "mlc"
