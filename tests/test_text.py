"""Text from strangers: shown, never obeyed."""

import json
import math

import pytest

from vitkit.text import distinct_ends, format_bytes, format_count, format_duration, json_text, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, café, 猫, 👩‍🔬", "plain, café, 猫, 👩‍🔬"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\x00b\x7fc\x9b2Jd\r\n\t", r"a\x00b\x7fc\x9b2Jd\x0d\x0a\x09"),
        ("\u202egnp.exe\u2066\u200f\u061c\u2028", r"\u202egnp.exe\u2066\u200f\u061c\u2028"),
        ("caf\udce9", r"caf\xe9"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_ends_of_lines_can_stay() -> None:
    assert visible("a\n\tb\r", keep="\n\t") == "a\n\tb" + r"\x0d"


def test_json_has_no_control_characters_and_says_what_it_lost() -> None:
    value = {
        "name": "\x1b[31m\u202e\x9b\x7f",
        "scores": [1.0, math.nan, {"deep": (math.inf,)}],
        "file\udcff": "x\udcff",
    }
    text = json_text(value, indent=2)
    assert json.loads(text) == {
        "name": "\x1b[31m\u202e\x9b\x7f",
        "scores": [1.0, None, {"deep": [None]}],
        r"file\xff": r"x\xff",
        "not_finite": ["scores[1]", "scores[2].deep[0]"],
    }
    assert visible(text, keep="\n") == text
    listed = json.loads(json_text([{"a": math.nan}, {"a": 1.0}, 2]))
    assert listed == [{"a": None, "not_finite": ["a"]}, {"a": 1.0}, 2]


def test_json_in_ascii() -> None:
    assert json_text({"é": "猫"}, ascii_only=True) == r'{"\u00e9": "\u732b"}'
    assert json_text({"é": "猫"}) == '{"é": "猫"}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7559, "2 h 05 min"),
        (273_600, "3 days 4 h"),
    ],
)
def test_times_are_written_as_people_do(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "as_bytes", "as_count"),
    [
        (0, "0 bytes", "0 FLOPs"),
        (999, "999 bytes", "999 FLOPs"),
        (86_567_656, "86.6 MB", "86.6 MFLOPs"),
        (4e15, "4.0 PB", "4.0 PFLOPs"),
    ],
)
def test_large_numbers_have_prefixes(count: float, as_bytes: str, as_count: str) -> None:
    assert format_bytes(count) == as_bytes and format_count(count, "FLOPs") == as_count
    assert format_count(count) == as_count.removesuffix("FLOPs").removesuffix(" ")


def test_paths_are_shortened_to_what_tells_them_apart() -> None:
    starts = ["runs/a", "other/a", "runs/b/", "hf:org/name"]
    assert distinct_ends(starts) == ["runs/a", "other/a", "b", "name"]
    # What is shortened does not say where it is.
    starts = ["/home/me/one/run", "/home/me/two/run", "/data/two/run", "here/run", "/home/me/b"]
    assert distinct_ends(starts) == ["one/run", "me/two/run", "data/two/run", "here/run", "b"]
