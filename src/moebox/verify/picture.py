"""Small pictures made here: a word, a number of squares, a colour. PNG, without a library."""

import base64
import struct
import zlib

Colour = tuple[int, int, int]
Rows = list[list[Colour]]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
COLOURS: dict[str, Colour] = {
    "red": (220, 20, 20),
    "green": (20, 160, 40),
    "blue": (30, 60, 220),
    "yellow": (250, 220, 20),
}
SCALE = 12  # pixels of one dot of a letter

# Five by seven dots a letter, one row a number, the leftmost dot the highest bit.
_FONT: dict[str, tuple[int, ...]] = {
    "A": (14, 17, 17, 31, 17, 17, 17),
    "C": (14, 17, 16, 16, 16, 17, 14),
    "E": (31, 16, 16, 30, 16, 16, 31),
    "F": (31, 16, 16, 30, 16, 16, 16),
    "H": (17, 17, 17, 31, 17, 17, 17),
    "K": (17, 18, 20, 24, 20, 18, 17),
    "L": (16, 16, 16, 16, 16, 16, 31),
    "M": (17, 27, 21, 21, 17, 17, 17),
    "N": (17, 25, 21, 19, 17, 17, 17),
    "P": (30, 17, 17, 30, 16, 16, 16),
    "R": (30, 17, 17, 30, 20, 18, 17),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 17, 17, 14),
    "X": (17, 17, 10, 4, 10, 17, 17),
    "Y": (17, 17, 10, 4, 4, 4, 4),
    "2": (14, 17, 1, 6, 8, 16, 31),
    "3": (30, 1, 1, 14, 1, 1, 30),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "9": (14, 17, 17, 15, 1, 17, 14),
}
LETTERS = tuple(_FONT)


def draw_word(text: str) -> Rows:
    """Black letters on white."""
    across, down = (6 * len(text) + 4) * SCALE, 11 * SCALE
    rows = _field(across, down, WHITE)
    for place, letter in enumerate(text):
        for y, bits in enumerate(_FONT[letter]):
            for x in range(5):
                if bits >> (4 - x) & 1:
                    _fill(rows, (2 + 6 * place + x) * SCALE, (2 + y) * SCALE, SCALE, BLACK)
    return rows


def draw_squares(count: int) -> Rows:
    """So many black squares in a row on white."""
    rows = _field(60 * count + 40, 120, WHITE)
    for place in range(count):
        _fill(rows, 30 + 60 * place, 40, 40, BLACK)
    return rows


def fill_colour(name: str) -> Rows:
    """One colour all over."""
    return _field(128, 128, COLOURS[name])


def _field(across: int, down: int, paint: Colour) -> Rows:
    return [[paint] * across for _ in range(down)]


def _fill(rows: Rows, left: int, top: int, size: int, paint: Colour) -> None:
    for row in rows[top : top + size]:
        row[left : left + size] = [paint] * size


def encode_png(rows: Rows) -> bytes:
    """The picture as a PNG file."""
    raw = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(rows: Rows) -> str:
    """The picture as a data URL."""
    return "data:image/png;base64," + base64.b64encode(encode_png(rows)).decode()
