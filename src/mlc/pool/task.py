"""The one function that clients name to boards; nothing else of this program is ever asked for by name."""

from __future__ import annotations

PLUGIN = "mlc-board"


def work(parcel: bytes) -> bytes:
    """Does what a parcel says, on the board whose worker this is called in; the answer is a parcel, too."""
    from distributed import get_worker

    answer: bytes = get_worker().plugins[PLUGIN].board.work(parcel)
    return answer
