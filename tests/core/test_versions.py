"""Versions as people write them."""

import pytest

from moebox.core.versions import canonical_version, in_versions, same_version, version_in_range


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("v0.5.15", "0.5.15"),
        ("0.5.15-RC1", "0.5.15rc1"),
        ("0.5.15.rc1", "0.5.15rc1"),
        ("0.5.10-post1", "0.5.10.post1"),
        ("0.5.15-cu130", "0.5.15"),
        ("v0.5.2-b200-cu129", "0.5.2"),
        ("0.6.0b1", "0.6.0b1"),
        ("0.32.0+cu129", "0.32.0+cu129"),
        ("V0.27.0.dev123+gABC1234", "0.27.0.dev123+gabc1234"),
        ("B11669", "b11669"),
        ("2026-08", "2026-08"),
        ("my-Branch", "my-Branch"),
        ("5e1f2a9", "5e1f2a9"),
        ("", ""),
    ],
)
def test_a_version_has_one_spelling(written: str, canonical: str):
    """And that spelling is its own."""
    assert canonical_version(written) == canonical
    assert canonical_version(canonical) == canonical


@pytest.mark.parametrize(
    ("wanted", "here", "same"),
    [
        ("0.32", "0.32.0", True),
        ("0.32.0", "0.32.0+cu129", True),
        ("v0.32.0", "0.32.0", True),
        ("0.5.15-rc1", "0.5.15rc1", True),
        ("0.5.10", "0.5.10.post1", False),
        ("0.32.0", "0.32.0.dev5", False),
        ("0.32", "0.32.1", True),
        ("0.3", "0.32.0", False),
        ("11669", "b11669", True),
        ("main", "b11669", False),
    ],
)
def test_an_installed_version_is_the_wanted_one(wanted: str, here: str, same: bool):
    """Less exact names fit; a later fix or a development build is another version."""
    assert same_version(wanted, here) == same


def test_versions_of_two_kinds_are_not_compared():
    """A build number is neither older nor newer than a release or a date: it counts as the newest."""
    for version in ("b11669", "2026-07-15", "main", "5e1f2a9"):
        assert version_in_range(version, ">=0.5.10")
        assert not version_in_range(version, "<0.5.10")
        assert not in_versions(version, ">=0.5.10")
    assert in_versions("0.5.15-cu130", "<=0.5.15")
    assert in_versions("0.6.0b1", "<=0.6.0")
