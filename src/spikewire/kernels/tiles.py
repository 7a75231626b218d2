"""Addresses and loads in Triton: tiles of rows and channels, time steps, positions in an image.

Currents are stored as ``[time, rows, channels]``, one row per position of an image.
"""

# Triton's tensors carry no types a checker could follow, and masks are passed by position.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def index_tile(first_row, total, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return rows ``[ROWS]``, columns ``[WIDTH]``, their offsets, and which offsets exist."""
    row = first_row.to(tl.int64) + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    offset = row[:, None] * channels + column[None, :]
    return row, column, offset, (column < channels)[None, :] & (offset < total)


@triton.jit
def locate(row, height, width):
    """Return image, line and column of a row; 32 bits hold any row and divide far faster."""
    row = row.to(tl.int32)
    line = row // width
    image = line // height
    return image, line - image * height, row - line * width


@triton.jit
def load_channel(pointer, column, channels):
    """Load one float per channel as ``[1, WIDTH]``."""
    return tl.load(pointer + column, mask=column < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def load_steps(pointer, offset, inside, total, TIME: tl.constexpr):
    """Load all time steps before the first is used, so that the reads overlap."""
    stride = tl.cast(total, tl.int64)  # the last step of a large batch is beyond 2^31
    values = ()
    for t in tl.static_range(TIME):
        values = values + (tl.load(pointer + t * stride + offset, mask=inside, other=0.0),)
    return values
