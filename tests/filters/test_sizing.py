"""Sizes: the textbook's relations, the literature's figures, and partitions that keep the promise."""

import math

import pytest

from bloomguard.filters import BloomFilter, InvalidShape, TooLarge, sizing

MIB = 8 << 20  # bits


@pytest.mark.parametrize(("keys", "mib"), [(10**8, 457), (10**9, 5_141), (10**10, 57_131)])
def test_one_in_n(keys, mib):
    """p = 1/n: 100M keys take 457 MiB, 1B 5,141, 10B 57,131."""
    assert int(sizing.optimal_bits(keys, 1 / keys) / MIB) == mib


@pytest.mark.parametrize(("keys", "mib"), [(10**8, 114.3), (10**9, 1_142.6), (10**10, 11_426)])
def test_one_in_a_hundred(keys, mib):
    """At 1%: 114.3 / 1,142.6 / 11,426 MiB."""
    assert sizing.optimal_bits(keys, 0.01) / MIB == pytest.approx(mib, rel=0.0005)


def test_one_percent_needs_9585_bits_a_key_and_7_hashes():
    """Not the often quoted 13 bits and 8 hashes."""
    bits = sizing.optimal_bits(1_000_000, 0.01)

    assert bits == 9_585_059
    assert sizing.optimal_hashes(bits, 1_000_000) == 7


def test_at_the_optimum_the_rate_is_0_6185_to_the_bits_per_key():
    for per_key in (5, 8, 10, 16):
        hashes = per_key * math.log(2)
        assert (1 - math.exp(-hashes / per_key)) ** hashes == pytest.approx(0.6185**per_key, rel=0.002)


def test_the_optimum_spends_1_44_times_the_information_limit():
    assert sizing.optimal_bits(10**6, 0.001) / (10**6 * math.log2(1000)) == pytest.approx(1.4427, abs=0.0001)


def test_the_four_relations_are_each_others_inverses():
    """Keys from bits, bits from keys, the rate from both."""
    bits = sizing.bits_with_hashes(1_000_000, 0.01, 7)

    assert sizing.capacity_of(bits, 7, 0.01) in range(1_000_000, 1_000_002)
    assert sizing.error_rate_of(bits, 7, 1_000_000) == pytest.approx(0.01, rel=1e-6)


def test_urls_of_two_files_in_four_gib():
    """5 billion URLs in 34.36 Gbit: 1% would need 47.9 Gbit; the best k is 5 and gives 3.69%."""
    bits, keys = 4 << 33, 5 * 10**9

    assert sizing.optimal_bits(keys, 0.01) == pytest.approx(47.9e9, rel=0.001)
    assert sizing.optimal_hashes(bits, keys) == 5
    assert sizing.error_rate_of(bits, 5, keys) == pytest.approx(0.0369, rel=0.002)


def test_five_layers_of_a_thousand():
    """A layer of 1,000 at 1% takes 1,199 bytes; five equal layers give 4.9%."""
    assert sizing.optimal_bits(1_000, 0.01) // 8 + 1 == 1_199
    assert round(1 - 0.99**5, 3) == 0.049


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001, 1e-6, 1e-9])
@pytest.mark.parametrize("capacity", [30_000, 123_456, 10_000_000])
def test_a_bloom_filter_spends_at_most_1_5_times_the_information_limit(capacity, rate):
    """Primes, bytes and fewer hashes included."""
    shape = BloomFilter.shape(capacity, rate)

    assert 8 * shape.body_bytes <= 1.5 * capacity * math.log2(1 / rate) + 64 * (1 + len(shape.sizes))


def test_one_percent_takes_5_hashes_and_one_in_a_thousand_8():
    assert sizing.economical_hashes(0.01) == 5
    assert sizing.economical_hashes(0.001) == 8


@pytest.mark.parametrize(("bits", "hashes"), [(1, 1), (10, 5), (1_000, 7), (1 << 33, 5), (1 << 48, 64)])
def test_partitions_are_distinct_primes_that_reach_the_bits(bits, hashes):
    sizes = sizing.partition_sizes(bits, hashes)

    assert len(set(sizes)) == hashes
    assert list(sizes) == sorted(sizes)
    assert all(map(sizing.is_prime, sizes))
    assert sum(sizes) >= bits


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 0.001, 1e-9])
@pytest.mark.parametrize("capacity", [1, 2, 3, 10, 100, 999, 65_536, 1_000_000, 1_482_910, 10**9])
def test_partitions_share_no_factor_and_keep_the_rate(capacity, rate):
    """Primes, and a power of two in front where it costs hardly more; their fills multiply to at most the rate."""
    for hashes in {3, sizing.economical_hashes(rate), 12}:
        sizes = sizing.bloom_sizes(capacity, rate, hashes)

        assert len(sizes) == hashes
        assert math.lcm(*sizes) == math.prod(sizes)
        assert math.prod(-math.expm1(-capacity / size) for size in sizes) <= 1.0001 * rate
        assert sum(sizes) <= 1.012 * sum(
            sizing.partition_sizes(sizing.bits_with_hashes(capacity, rate, hashes), hashes)
        )


def test_the_first_partition_of_a_common_filter_is_a_power_of_two():
    """It is probed with a mask instead of a remainder, which is cheaper for the key that is not there."""
    assert BloomFilter.shape(1_000_000, 0.01).sizes[0] == 1 << 21
    assert BloomFilter.shape(1_000_000, 0.001).sizes[0] == 1 << 21


def test_primes_are_told_from_the_numbers_that_look_like_them():
    """Against a sieve, and Carmichael numbers and strong pseudoprimes."""
    sieve = [True] * 10_000
    sieve[:2] = [False, False]
    for number in range(2, 100):
        if sieve[number]:
            sieve[number * number :: number] = [False] * len(sieve[number * number :: number])

    assert [sizing.is_prime(number) for number in range(10_000)] == sieve
    assert not any(map(sizing.is_prime, (561, 1_729, 3_215_031_751, 3_825_123_056_546_413_051)))
    assert sizing.is_prime((1 << 61) - 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sizing.partition_sizes(0, 3), "bits is 0"),
        (lambda: sizing.partition_sizes(100, 65), "hashes is 65"),
        (lambda: sizing.bits_with_hashes(100, 0.01, 0), "hashes is 0"),
        (lambda: BloomFilter(100, hashes=100), "hashes is 100"),
    ],
)
def test_shapes_that_cannot_be_are_named(call, message):
    with pytest.raises(InvalidShape, match=message):
        call()


def test_more_bits_than_any_machine_has_are_refused_in_bytes():
    with pytest.raises(TooLarge, match=r"take [67]\d,\d{3},\d{3},\d{3},\d{3} bytes"):
        sizing.partition_sizes((1 << 49) + 1, 3)
