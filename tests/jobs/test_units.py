"""Sizes and ages as users write and read them."""

from __future__ import annotations

import pytest
from filled_caches import DAY

from jobs.units import human_bytes, parse_age, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("50GB", 50e9), ("1.5 TiB", 1.5 * 2**40), ("10k", 10_000), ("7MB", 7e6)],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_bytes(text, "--max-size") == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "1iB", "1e3", "9" * 400 + "GB"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(ValueError, match=r"--max-size .* is not a size"):
        parse_bytes(text, "--max-size")


@pytest.mark.parametrize("text", ["", "30", "30x", "-1d", "d", "1" * 40 + "w"])
def test_an_invalid_age_is_refused(text):
    with pytest.raises(ValueError, match=r"--older-than .* is not an age"):
        parse_age(text, "--older-than")


def test_ages_are_read_as_people_write_them():
    ages = [parse_age(text, "--older-than").total_seconds() for text in ("36h", "1.5d", "2 W")]
    assert ages == [1.5 * DAY, 1.5 * DAY, 14 * DAY]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (31_449, "31.4 kB"), (999_999, "1.0 MB"), (123e9, "123 GB")],
)
def test_sizes_are_shown_with_three_digits(num_bytes, text):
    assert human_bytes(num_bytes) == text
