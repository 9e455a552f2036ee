from __future__ import annotations

from mlc.frontend.common.names import MOST_CHARACTERS, shortened


def test_short_names_stay():
    assert shortened("a" * MOST_CHARACTERS) == "a" * MOST_CHARACTERS


def test_long_names_are_told_apart_and_keep_their_ends():
    one, other = (shortened("first/" + "x" * k + "/last") for k in (5000, 5001))
    assert one != other
    assert len(one) <= MOST_CHARACTERS
    assert one.startswith("first/")
    assert one.endswith("/last")
    assert shortened(one) == one
