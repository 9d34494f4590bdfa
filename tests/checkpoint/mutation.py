"""Files that something went wrong with."""

from hypothesis import strategies as st


def mutated(raw: bytes, data: st.DataObject) -> bytes:
    """A few bytes flipped anywhere, and the rest cut off somewhere."""
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(0, len(changed)))])
