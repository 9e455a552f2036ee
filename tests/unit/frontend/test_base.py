from __future__ import annotations

from importlib import metadata

import pytest

from mlc.errors import ImportModelError, UsageError
from mlc.frontend import base
from mlc.frontend.base import frontend_accepting, frontend_names, get_frontend, guess_frontend
from tests.unit.frontend.onnx.models import relu_model


class Other:
    """A front end of another package."""

    name = "other"
    suffixes = (".other",)

    def matches(self, head, path):
        return head.startswith(b"OTHER")


def point(name, value):
    return metadata.EntryPoint(name, value, base.GROUP)


@pytest.fixture
def points(monkeypatch):
    """Sets the entry points that are found."""

    def use(*found):
        monkeypatch.setattr(metadata, "entry_points", lambda group: [p for p in found if p.group == group])

    return use


def test_built_in_front_ends_are_found_without_entry_points(points):
    points()
    assert "onnx" in frontend_names()
    assert get_frontend("onnx").name == "onnx"
    assert ".onnx" in get_frontend("onnx").suffixes


def test_front_ends_of_other_packages_are_found(points, tmp_path):
    points(point("other", "tests.unit.frontend.test_base:Other"))
    (tmp_path / "m").write_bytes(b"OTHER\0\1")
    assert "other" in frontend_names()
    assert guess_frontend(tmp_path / "m").name == "other"


def test_installed_packages_are_looked_through_for_what_no_built_in_knows(monkeypatch, tmp_path):
    asked = []
    others = [point("another", "tests.unit.frontend.test_base:Other")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: asked.append(group) or others)
    (tmp_path / "m.onnx").write_bytes(relu_model().SerializeToString())
    assert guess_frontend(tmp_path / "m.onnx").name == get_frontend("onnx").name == "onnx"
    assert not asked
    (tmp_path / "m").write_bytes(b"OTHER\0\1")
    assert guess_frontend(tmp_path / "m").name == "other"
    assert asked == [base.GROUP]


def test_live_models_are_those_of_other_packages_at_last(monkeypatch):
    class Live:
        pass

    monkeypatch.setattr(Other, "accepts", lambda self, model: isinstance(model, Live), raising=False)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point("other", "tests.unit.frontend.test_base:Other")])
    assert frontend_accepting(Live()).name == "other"
    with pytest.raises(UsageError, match=r"an object of the class builtins\.object is no model"):
        frontend_accepting(object())


def test_a_built_in_may_be_registered_again_as_itself(points):
    points(point("onnx", base.BUILT_IN["onnx"]))
    assert "onnx" in frontend_names()


def test_two_front_ends_of_one_name_are_refused(points):
    points(point("onnx", "elsewhere:Thing"))
    with pytest.raises(UsageError, match=r"'onnx' is registered twice: mlc.frontend.onnx:OnnxFrontend and elsewhere"):
        frontend_names()


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="no front end 'onx'") as caught:
        get_frontend("onx")
    assert "did you mean onnx?" in caught.value.hint
    with pytest.raises(UsageError, match="no front end 'zzz'") as caught:
        get_frontend("zzz")
    assert "onnx" in caught.value.hint


def test_the_content_decides_not_the_suffix(tmp_path):
    file = tmp_path / "model.h5"
    file.write_bytes(relu_model(2).SerializeToString())
    assert guess_frontend(file).name == "onnx"


def test_what_no_front_end_knows_is_described(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x93NUMPY\1\0")
    with pytest.raises(ImportModelError, match=r"model.onnx: not a model file: looks like a numpy array") as caught:
        guess_frontend(file)
    assert "onnx" in caught.value.hint
    file.write_bytes(b"\xff\xfe\xfd\xfc")
    with pytest.raises(ImportModelError, match=r"not a model file$"):
        guess_frontend(file)
