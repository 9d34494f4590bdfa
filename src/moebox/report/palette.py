"""Colours for light and dark paper, by the names that drawings use.

s1 to s8 distinguish runs: the colour-blind safe set of Okabe and Ito (jfly.uni-koeln.de/color, 2008) without yellow and
black, darkened for light paper and lightened for dark until each has a contrast of 3:1 (WCAG 2.2).
m1 to m8 are the parts of a memory bar: four blues for weights, two oranges for what grows with use, greys for the rest.
Neighbours differ in lightness, so they can be distinguished without colour.
"""

SERIES = 8
NAMES = ["paper", "panel", "ink", "soft", "faint", "rule", "hair", "good", "bad", "warn"]
NAMES += [f"{family}{number}" for family in "sm" for number in range(1, SERIES + 1)]
_LIGHT = """
    #fcfcfa #ffffff #1b1e23 #535a63 #656c75 #d9dce0 #eaecef #00704f #b3261e #8a5a00
    #0067a5 #c24a00 #00805c #a8568a #9a6a00 #2b8cbe #5b5f97 #6b6b6b
    #0b4f7d #2f7fb5 #78aed3 #b5d3e7 #d55e00 #eaa955 #9aa0a6 #e4e7ea
"""
_DARK = """
    #121519 #181c21 #e8eaed #a9b0b8 #7c848d #333a42 #262c33 #4fd1a0 #ff8a80 #f0c060
    #5eb3ee #ff8a4c #3fc79a #e08fc0 #e8b93f #8fd0f5 #a9adf0 #b4b4b4
    #25669a #3f86b8 #8cc0e3 #c3dcee #c8581c #ffc078 #6f7780 #2a3037
"""
LIGHT: dict[str, str] = dict(zip(NAMES, _LIGHT.split(), strict=True))
DARK: dict[str, str] = dict(zip(NAMES, _DARK.split(), strict=True))


def css_variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in palette.items())


def run_colour(index: int) -> int:
    """The palette's number for the run with this index; it starts again after eight runs."""
    return index % SERIES + 1
