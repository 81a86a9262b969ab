"""Damage to records: of JSON, drawn by hypothesis, and a file without end."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from tests.faults.mutate import REMOVED, leaves, replaced

NUMBERS = st.sampled_from([0, -1, 1.5, 1e300, 5e-324, 2**53, 2**63, 10**400, True])
JUNK = st.recursive(
    st.none()
    | st.integers()
    | NUMBERS
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(("cat", "dog", "owl")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def as_a_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that damages JSON: a key is missing or new, a value is another, bytes are lost or others."""
    kind = draw(st.sampled_from(["value", "value", "value", "missing", "new", "cut", "bytes", "anything"]))
    junk, text, share = draw(NUMBERS | JUNK), draw(st.binary(max_size=9)), draw(st.floats(0, 1))

    def apply(content: bytes) -> bytes:
        at = int(share * len(content))
        if kind == "cut":
            return content[:at]
        if kind == "bytes":
            return content[:at] + text + content[at + len(text) :]
        record = json.loads(content)
        places = list(leaves(record))
        if kind == "anything" or not places:
            return json.dumps(junk).encode() if at % 2 else text
        place = places[at % len(places)]
        if kind == "new" and isinstance(place[-1], str):
            place = (*place[:-1], f"{place[-1]}s")
        damaged = replaced(record, place, REMOVED if kind == "missing" else junk)
        return json.dumps(damaged).encode()

    return apply
