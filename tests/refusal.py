"""What every refusal of a user's mistake must look like."""

import pytest

from spikewire.errors import SpikewireError


def refused(call, *words) -> str:
    """Call it; assert one line of SpikewireError that says all `words`; return the line."""
    with pytest.raises(SpikewireError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message
    return message
