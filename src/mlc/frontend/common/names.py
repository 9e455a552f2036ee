"""Names that the import makes up: of nodes and tensors inside functions, branches and rounds of loops."""

from __future__ import annotations

from hashlib import blake2b

MOST_CHARACTERS = 256
_HEAD, _TAIL = 96, 128


def shortened(name: str) -> str:
    """A name of bounded length: a long one keeps its ends, and between them a digest that tells it from others.

    Names of bodies are put before the names in them, level by level; without a bound a file of a few kilobytes would
    grow to gigabytes of names.

    >>> shortened("layer1/conv")
    'layer1/conv'
    >>> len(shortened("layer/" * 1000)) <= MOST_CHARACTERS
    True
    """
    if len(name) <= MOST_CHARACTERS:
        return name
    digest = blake2b(name.encode(), digest_size=6).hexdigest()
    return f"{name[:_HEAD]}...{digest}...{name[-_TAIL:]}"
