"""Sizes, times and rates as people write and read them; 1024 and 1000 are never mixed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.errors import ConfigError
from ipcbench.util.units import (
    format_bytes,
    format_duration_ns,
    format_significant,
    parse_bytes,
    parse_count,
    parse_duration_s,
    parse_rate_per_s,
    parse_ratio,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *[("0", 0), ("64", 64), ("64B", 64), (" 64 B ", 64), ("1KiB", 1024), ("4 MiB", 4 * 2**20), ("1GiB", 2**30)],
        *[("64k", 65536), ("64K", 65536), ("1m", 2**20), ("2G", 2**31), ("1 KIB", 1024), ("1Kib", 1024), ("1kb", 1000)],
        *[("1e3", 1000), ("1.5e6", 1_500_000), ("1e3 kB", 1_000_000), ("0.1MB", 100_000), ("٣", 3)],
        *[("1kB", 1000), ("1KB", 1000), ("1.5MB", 1_500_000), ("0.5KiB", 512), ("2GB", 2_000_000_000)],
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "1 KIBI", "1t", "1e-3", "e3", "1e999", "0.3KiB", "KiB", "1 2", "1,000", "nan", "inf"]
)
def test_what_is_no_size_is_refused_with_field_and_value(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text, "--size")
    assert caught.value.field == "--size"
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("0.3", 0.3), ("300ms", 0.3), ("60s", 60.0), ("2min", 120.0), ("1h", 3600.0)],
        *[("5us", 5e-6), ("5µs", 5e-6), ("7ns", 7e-9), ("2m", 120.0), ("5mins", 300.0)],
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "1 day", "1M", "s", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="300ms"):
        parse_duration_s(text)


def test_where_a_duration_may_be_zero_it_may_not_be_negative() -> None:
    assert parse_duration_s("0ms", or_zero=True) == 0.0
    with pytest.raises(ConfigError, match="a time in ns"):
        parse_duration_s("-1ms", or_zero=True)


@pytest.mark.parametrize(("text", "count"), [("10", 10), ("10k", 10_000), ("1e6", 10**6), ("2M", 2_000_000)])
def test_counts_are_read_in_thousands(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["1KiB", "1kB", "64B", "1.5", "x", ""])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="entries"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("5%", 0.05), ("5", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("0.5%", 0.005), ("1", 0.01), ("0", 0.0)],
)
def test_shares_are_read_with_and_without_the_sign(text: str, ratio: float) -> None:
    assert parse_ratio(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["", "-5%", "five", "%", "nan", "1e3%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="5% or 5"):
        parse_ratio(text)


@pytest.mark.parametrize(("text", "rate"), [("500", 500.0), ("500/s", 500.0), ("2k/s", 2000.0), ("1M/s", 1e6)])
def test_rates_are_read(text: str, rate: float) -> None:
    assert parse_rate_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-5", "2K", "fast", "5/min"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="500/s"):
        parse_rate_per_s(text)


@given(st.integers(0, 2**40))
def test_a_size_is_written_exactly(count: int) -> None:
    assert parse_bytes(format_bytes(count).replace(",", "")) == count


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1000, "1,000 B"), (1024, "1 KiB"), (1536, "1,536 B"), (3 * 2**20, "3 MiB"), (2**31, "2 GiB")],
)
def test_sizes_are_written_in_binary_units_only_if_exact(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (1, "1.00"), (12.345, "12.3"), (999, "999"), (999.6, "1,000"), (1234, "1,230")],
        *[(1234567, "1,230,000"), (0.05678, "0.0568"), (0.001, "0.00100"), (-12.345, "-12.3")],
    ],
)
def test_numbers_keep_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert format_significant(value) == text


@given(st.floats(1e-9, 1e15))
def test_a_written_number_is_within_half_a_unit_of_its_third_digit(value: float) -> None:
    assert float(format_significant(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        *[(0.0, "0 ns"), (5.74, "5.74 ns"), (999.0, "999 ns"), (1_004.0, "1.00 µs"), (5_740.0, "5.74 µs")],
        *[(5_740_000.0, "5.74 ms"), (5_740_000_000.0, "5.74 s")],
    ],
)
def test_times_change_units_by_thousands(value_ns: float, text: str) -> None:
    """The table that this project replaces printed 5.74 ms as 0.0057 "ms" and 4.65 µs as 0.005 "µs"."""
    assert format_duration_ns(value_ns) == text


@pytest.mark.parametrize(("digits", "text"), [(3, "996 ns"), (2, "1.0 µs"), (1, "1 µs")])
def test_a_time_that_rounds_up_changes_its_unit(digits: int, text: str) -> None:
    assert format_duration_ns(996.0, digits) == text


@given(st.floats(1e-3, 1e13))
def test_a_written_time_reads_back_as_the_same_time(value_ns: float) -> None:
    text = format_duration_ns(value_ns).replace(",", "")
    assert parse_duration_s(text) * 1e9 == pytest.approx(value_ns, rel=0.0051)
