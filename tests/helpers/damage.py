"""Damage to records of JSON, drawn by hypothesis."""

import json
from collections.abc import Callable

from hypothesis import strategies as st

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


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that damages JSON: a key is missing or new, a value is another, bytes are lost or others."""
    kind = draw(st.sampled_from(["value", "value", "value", "missing", "new", "cut", "bytes", "anything"]))
    turns, number, junk = (
        draw(st.lists(st.integers(0, 63), min_size=8, max_size=8)),
        draw(NUMBERS),
        draw(JUNK),
    )
    text, place = draw(st.binary(max_size=9)), draw(st.floats(0, 1))

    def apply(content: bytes) -> bytes:
        at = int(place * len(content))
        if kind == "cut":
            return content[:at]
        if kind == "bytes":
            return content[:at] + text + content[at + len(text) :]
        if kind == "anything":
            return json.dumps(junk).encode() if turns[0] % 2 else text
        record = inside = json.loads(content)
        for turn in turns:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not keys:
                return json.dumps(junk).encode()
            key = keys[turn % len(keys)]
            if isinstance(inside[key], dict | list) and inside[key] and turn % 5:
                inside = inside[key]
                continue
            if kind == "missing":
                del inside[key]
            elif kind == "new" and isinstance(inside, dict):
                inside[f"{key}s"] = junk
            else:
                inside[key] = number if isinstance(inside[key], int | float) and turn % 3 else junk
            break
        return json.dumps(record).encode()

    return apply
