"""Every rule on external data, each by a model that breaks it."""

from __future__ import annotations

import os
import resource

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mlc.errors import ImportModelError
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.interp import run_graph
from tests.unit.frontend.onnx.models import info, model, node, refused

W = np.arange(4, dtype=np.float32)


def external(**fields):
    """``y = x + w`` with ``w`` outside."""
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", [4])], ["y"])
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    return proto


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "w.bin").write_bytes(b"head" + W.tobytes())
    return inside


def load(folder, proto):
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return import_onnx(folder / "m.onnx")


def refuse(folder, match, **fields):
    with pytest.raises(ImportModelError, match=match) as caught:
        load(folder, external(**fields))
    assert "m.onnx: initializer 'w': " in caught.value.message
    return caught.value


def test_data_is_read_from_beside_the_model(folder):
    graph = load(folder, external(location="w.bin", offset=4, length=16)).graph
    out = run_graph(graph, {"x": np.ones(4, np.float32)})["y"]
    np.testing.assert_array_equal(out, W + 1)


def test_folders_below_are_allowed_and_the_length_may_be_left_out(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    os.rename(folder / "w.bin", folder / "deep" / "er" / "w.bin")
    load(folder, external(location="deep/er/w.bin", offset=4))
    load(folder, external(location="./deep/er/w.bin", offset=4))


def test_what_onnx_itself_writes_is_read(folder):
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", [4])], ["y"], {"w": W})
    onnx.save_model(proto, str(folder / "n.onnx"), save_as_external_data=True, location="n.data", size_threshold=0)
    (array,) = import_onnx(folder / "n.onnx").graph.constants.values()
    np.testing.assert_array_equal(array, W)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../w.bin",
        "a/../../w.bin",
        "a//w.bin",
        "",
        ".",
        "a/.",
        "C:w.bin",
        "http://host/w.bin",
        "file:///etc/passwd",
        "a\\w.bin",
        "w.bin\0",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(folder, location):
    error = refuse(folder, "not a path inside the model's folder", location=location)
    assert "inside the model's folder" in error.hint


def test_a_missing_location_is_refused(folder):
    refuse(folder, "external data at ''", offset=4)


def test_symbolic_links_are_refused_wherever_they_are(folder, tmp_path):
    (tmp_path / "secret").write_bytes(W.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    refuse(folder, "external data 'link' is a symbolic link", location="link")
    (folder / "sub").symlink_to(tmp_path, target_is_directory=True)
    refuse(folder, "external data 'sub' is a symbolic link", location="sub/secret")
    (folder / "near").symlink_to("w.bin")
    refuse(folder, "external data 'near' is a symbolic link", location="near", offset=4)


def test_hard_links_are_refused(folder, tmp_path):
    (tmp_path / "secret").write_bytes(W.tobytes())
    os.link(tmp_path / "secret", folder / "hard")
    refuse(folder, "external data 'hard' has several hard links", location="hard")


@pytest.mark.timeout(5)
def test_what_is_no_file_is_refused_without_waiting(folder):
    os.mkfifo(folder / "pipe")
    refuse(folder, "external data 'pipe' is a named pipe", location="pipe")
    (folder / "dir").mkdir()
    refuse(folder, "external data 'dir' is a folder", location="dir")
    refuse(folder, "external data 'w.bin' is a regular file", location="w.bin/x")


def test_absent_files_are_refused(folder):
    refuse(folder, "external data 'gone' cannot be opened: No such file", location="gone")


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"offset": 8}, "ends at byte 24 of 'w.bin', which has 20"),
        ({"offset": 10**17}, "ends at byte 100000000000000016"),
        ({"offset": 4, "length": 17}, "external data of 17 bytes, its shape and type need 16"),
        ({"offset": 4, "length": 12}, "of 12 bytes, its shape and type need 16"),
        ({"offset": -1}, "offset '-1', not a number of bytes"),
        ({"offset": "0x4"}, "offset '0x4', not a number of bytes"),
        ({"length": "16 "}, "length '16 ', not a number of bytes"),
        ({"offset": "9" * 30}, "not a number of bytes"),
        ({"offset": "²"}, "not a number of bytes"),
        ({"size": 3}, "has a wrong entry 'size'"),
        ({"basepath": "/"}, "with a base path"),
    ],
)
def test_regions_must_fit_file_and_tensor(folder, fields, match):
    refuse(folder, match, location="w.bin", **fields)


def test_entries_must_not_repeat(folder):
    proto = external(location="w.bin", offset=4)
    proto.graph.initializer[0].external_data.add(key="offset", value="0")
    with pytest.raises(ImportModelError, match="has a wrong entry 'offset'"):
        load(folder, proto)


def test_tied_weights_may_share_a_region_but_regions_may_not_overlap(folder):
    def tied(offset):
        proto = external(location="w.bin", offset=4)
        proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
        proto.graph.initializer[1].name = "v"
        proto.graph.initializer[1].external_data[1].value = str(offset)
        proto.graph.node.add().CopyFrom(node("Add", ["y", "v"], ["z"]))
        proto.graph.output[0].name = "z"
        return proto

    load(folder, tied(4))
    with pytest.raises(ImportModelError, match=r"initializer 'v': external data in 'w.bin' overlaps"):
        load(folder, tied(0))


def test_bytes_have_no_folder_to_look_in():
    error = refused(external(location="w.bin"), ImportModelError, "the model was given as bytes")
    assert "by its path" in error.hint


def test_data_in_two_places_is_refused(folder):
    proto = external(location="w.bin", offset=4)
    proto.graph.initializer[0].raw_data = W.tobytes()
    with pytest.raises(ImportModelError, match="has data both in the model and outside it"):
        load(folder, proto)


def test_entries_without_the_mark_are_refused(folder):
    proto = external(location="w.bin", offset=4)
    proto.graph.initializer[0].ClearField("data_location")
    with pytest.raises(ImportModelError, match="does not say where its data lies"):
        load(folder, proto)


def test_the_rules_hold_for_attributes_and_subgraphs_too(folder):
    tensor = external(location="../w.bin").graph.initializer[0]
    constant = model([node("Constant", [], ["y"], value=tensor)], [], ["y"])
    with pytest.raises(ImportModelError, match=r"attribute 'value': external data at '../w.bin'"):
        load(folder, constant)
    branch = onnx.helper.make_graph([node("Identity", ["w"], ["o"])], "b", [], [info("o", [4])], [tensor])
    choice = model([node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [], ["y"], {"c": np.array(True)})
    with pytest.raises(ImportModelError, match=r"initializer 'If_0/then/w': external data at '../w.bin'"):
        load(folder, choice)


def test_a_declared_length_is_compared_before_anything_is_read(folder):
    """1 TB over a sparse file would otherwise be read up to the end of memory."""
    with (folder / "w.bin").open("ab") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse(folder, "external data of 1099511627776 bytes, its shape and type need 16", location="w.bin", length=1 << 40)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("where", ["initializers", "constants"])
def test_much_external_data_is_refused_before_it_is_read(folder, where):
    """Twenty files of 1 GB."""
    proto = model([node("Sum", ["x", *(f"w{k}" for k in range(20))], ["y"])], [info("x", [1])], ["y"])
    for k in range(20):
        with (folder / f"w{k}.bin").open("wb") as file:
            file.truncate(1 << 30)
        tensor = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[1 << 28])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"w{k}.bin")
        if where == "initializers":
            proto.graph.initializer.append(tensor)
        else:
            proto.graph.node.insert(0, node("Constant", [], [f"w{k}"], value=tensor))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ImportModelError, match=r"external data.*, the limit 'external_bytes' is 8589934592") as caught:
        load(folder, proto)
    assert "--limit external_bytes=21474836480" in caught.value.hint
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
