"""Convert between capacity, error rate, bits and hashes, and find the prime sizes of the partitions.

In the formulas ``n`` is the number of keys, ``m`` of bits, ``k`` of hashes, and ``p`` the false-positive rate. The
textbook formulas are those of Bloom 1970 and of Broder and Mitzenmacher 2004, "Network Applications of Bloom Filters: A
Survey"; those without ``k`` assume its optimal value.
"""

from __future__ import annotations

import math
import os

from ..exceptions import InvalidShape, TooLarge

MAX_BITS = 1 << 48  # 32 TiB: more than any machine has, and no computation below overflows
MAX_HASHES = 64

#: Bits as a multiple of the information limit ``n log2(1/p)``. The least is 1.4427; a little more saves probes and a
#: quarter of the time of a hit. With 1.49 the result stays below 1.5 after rounding to primes and bytes.
_SPEND = 1.49

#: With a power of two as first size: the bits as a multiple of those without it, and of the information limit, at most.
_POWER_COSTS, _POWER_SPEND = 1.011, 1.495

#: Beyond its capacity a guard's filter has more false positives: at :data:`GROWTH` times its capacity at most
#: :data:`WORSE` times its error rate.
GROWTH, WORSE = 2, 10

_MILLER_RABIN_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # exact below 3.3e24


def check_capacity(capacity: int) -> int:
    """Return ``capacity`` if it is a whole number of keys from 1 to 2**48. Raises :class:`InvalidShape`."""
    if not isinstance(capacity, int) or isinstance(capacity, bool) or not 1 <= capacity <= MAX_BITS:
        raise InvalidShape(f"capacity is {capacity!r}; it has to be a whole number of keys from 1 to 2**48")
    return capacity


def check_error_rate(error_rate: float) -> float:
    """Return ``error_rate`` if it is from 1e-15 to 0.5. Raises :class:`InvalidShape`."""
    if not isinstance(error_rate, (int, float)) or not 1e-15 <= error_rate <= 0.5:
        raise InvalidShape(f"error_rate is {error_rate!r}; it has to be a rate from 1e-15 to 0.5, such as 0.001")
    return float(error_rate)


def optimal_bits(capacity: int, error_rate: float) -> int:
    """Return ``m = ceil(n ln p / ln(1 / 2^ln 2))``, in bits. Raises :class:`InvalidShape`."""
    n, p = check_capacity(capacity), check_error_rate(error_rate)
    return math.ceil(n * math.log(p) / math.log(1 / 2 ** math.log(2)))


def optimal_hashes(bits: int, capacity: int) -> int:
    """Return ``k = round(m/n ln 2)``, at least 1. Raises :class:`InvalidShape`."""
    return max(1, round(bits / check_capacity(capacity) * math.log(2)))


def capacity_of(bits: int, hashes: int, error_rate: float) -> int:
    """Return ``n = floor(-m/k ln(1 - p^(1/k)))``: the most keys at ``error_rate`` in ``bits`` with ``hashes``.

    Raises :class:`InvalidShape`.
    """
    return math.floor(-bits / hashes * math.log(1 - check_error_rate(error_rate) ** (1 / hashes)))


def error_rate_of(bits: int, hashes: int, keys: int) -> float:
    """Return ``p = (1 - e^(-kn/m))^k``: the expected false-positive rate with ``keys`` distinct keys."""
    return float((1 - math.exp(-hashes * keys / bits)) ** hashes)


def bits_with_hashes(capacity: int, error_rate: float, hashes: int) -> int:
    """Return ``m = ceil(-kn / ln(1 - p^(1/k)))``: the bits needed with ``hashes``."""
    n, p = check_capacity(capacity), check_error_rate(error_rate)
    if not 1 <= hashes <= MAX_HASHES:
        raise InvalidShape(f"hashes is {hashes!r}; it has to be from 1 to {MAX_HASHES}")
    return math.ceil(-hashes * n / math.log(1 - p ** (1 / hashes)))


def economical_hashes(error_rate: float) -> int:
    """Return the fewest hashes whose bits are at most 1.49 times the information limit (5 at 1%, 8 at 0.1%)."""
    p = check_error_rate(error_rate)
    limit = _SPEND * math.log2(1 / p)
    for hashes in range(1, MAX_HASHES):
        if -hashes / math.log(1 - p ** (1 / hashes)) <= limit:
            return hashes
    return MAX_HASHES


def grown_error_rate(error_rate: float) -> float:
    """Return the false-positive rate that is allowed at :data:`GROWTH` times the capacity."""
    return min(WORSE * check_error_rate(error_rate), 0.5)


def growing_hashes(error_rate: float) -> int:
    """Return the fewest hashes of a growing filter with at most 1/30 more bits than the least (5 at 1% and 0.1%)."""

    def bits(hashes: int) -> float:
        first, last = (-hashes / math.log1p(-(p ** (1 / hashes))) for p in (error_rate, grown_error_rate(error_rate)))
        return max(first, GROWTH * last)

    least = min(map(bits, range(1, MAX_HASHES + 1)))
    return next(hashes for hashes in range(1, MAX_HASHES + 1) if bits(hashes) <= least * _SPEND * math.log(2))


def growing_sizes(capacity: int, error_rate: float, hashes: int) -> tuple[int, ...]:
    """Return partitions with ``error_rate`` at ``capacity`` keys, and the :func:`grown_error_rate` at twice as many."""
    aims = (check_capacity(capacity), error_rate), (min(GROWTH * capacity, MAX_BITS), grown_error_rate(error_rate))
    for sizes in sorted((bloom_sizes(*aim, hashes) for aim in aims), key=sum):
        if all(math.prod(-math.expm1(-keys / size) for size in sizes) <= rate * 1.001 for keys, rate in aims):
            return sizes
    return partition_sizes(max(bits_with_hashes(*aim, hashes) for aim in aims), hashes)


def is_prime(number: int) -> bool:
    """Return whether ``number`` is prime: Miller-Rabin with bases that are exact below 3.3e24."""
    if number < 2 or any(number % base == 0 for base in _MILLER_RABIN_BASES):
        return number in _MILLER_RABIN_BASES
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    odd = (number - 1) >> twos
    powers = (pow(base, odd, number) for base in _MILLER_RABIN_BASES)
    return all(
        power == 1 or any(pow(power, 1 << square, number) == number - 1 for square in range(twos)) for power in powers
    )


def partition_sizes(bits: int, hashes: int) -> tuple[int, ...]:
    """Return ``hashes`` distinct primes, ascending, whose sum is at least ``bits`` and hardly more.

    The positions of a key are the remainders of its digest by these primes (Lu et al. 2015, "One-Hashing Bloom
    Filter"). By the Chinese remainder theorem they are independent as far as the digest is long enough.
    """
    if bits < 1:
        raise InvalidShape(f"bits is {bits!r}; it has to be from 1 to 2**48")
    if bits > MAX_BITS:
        raise TooLarge(f"{bits:,} bits take {bits // 8:,} bytes; at most 2**48 bits are possible")
    if not 1 <= hashes <= MAX_HASHES:
        raise InvalidShape(f"hashes is {hashes!r}; it has to be from 1 to {MAX_HASHES}")
    sizes: list[int] = []
    candidate = max(2, -(-bits // hashes))
    while len(sizes) < hashes:
        if is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    return tuple(sizes)


def bloom_sizes(capacity: int, error_rate: float, hashes: int) -> tuple[int, ...]:
    """Return the partitions for ``capacity`` keys at ``error_rate``, in the order of the probes.

    The first is a power of two if that costs hardly any memory, the others are primes: a mask is cheaper than a
    remainder, and the first probe rejects most absent keys. The product of the fills is ``error_rate``.
    """
    bits = bits_with_hashes(capacity, error_rate, hashes)
    choices = []
    for power in (math.floor(math.log2(bits / hashes)), math.ceil(math.log2(bits / hashes))):
        fill = -math.expm1(-capacity / 2**power)
        if hashes > 1 and power >= 6 and error_rate < fill:
            each = -capacity / math.log1p(-((error_rate / fill) ** (1 / (hashes - 1))))
            choices.append((2**power + each * (hashes - 1), 2**power))
    total, first = min(choices, default=(math.inf, 0))
    limit = _POWER_SPEND * capacity * math.log2(1 / error_rate)
    if total > _POWER_COSTS * bits or total > limit > bits:
        return partition_sizes(bits, hashes)
    return (first, *partition_sizes(math.ceil(total) - first, hashes - 1))


def fullest_shard(capacity: int, shards: int) -> int:
    """Return the keys to expect in the fullest shard: balls into bins, four standard deviations above the mean."""
    mean = capacity / shards
    return math.ceil(mean + 4 * math.sqrt(mean))


def memory_bytes() -> int:
    """Return the size of the machine's memory, the default of ``max_bytes``."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return 1 << 40
