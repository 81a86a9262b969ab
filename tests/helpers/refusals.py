"""Checks that a call is refused in words."""

from collections.abc import Callable
from typing import Any

import pytest

from vitkit.errors import DecodeError, VitkitError


def refused(sentence: str, call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Check that a call ends in a sentence for its user in which a regular expression is; return it."""
    with pytest.raises(VitkitError, match=sentence) as caught:
        call(*arguments, **options)
    return str(caught.value)


def undecodable(sentence: str, call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Check that a call ends as it does for an image that cannot be decoded, which training leaves out."""
    with pytest.raises(DecodeError, match=sentence) as caught:
        call(*arguments, **options)
    return str(caught.value)
