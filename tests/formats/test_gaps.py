import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spikewire.formats.gaps import decode_bits, decode_gaps, encode_bits, encode_gaps


@given(st.sets(st.integers(0, 5000)), st.integers(5001, 6000))
def test_decoding_returns_the_encoded_positions(positions, total):
    index = np.array(sorted(positions), np.int64)
    assert np.array_equal(decode_gaps(encode_gaps(index)), index)
    assert np.array_equal(decode_bits(encode_bits(index, total), total), index)


def test_gaps_computed_by_hand():
    assert encode_gaps(np.array([0, 3, 259, 1000])).tolist() == [0, 2, 255, 0, 255, 255, 230]
