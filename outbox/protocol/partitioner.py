"""The partition of a key, as a Java producer would choose it (murmur2), so that topics can be joined."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `org.apache.kafka.common.utils.Utils`, unsigned."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for offset in range(0, whole, 4):
        k = int.from_bytes(data[offset : offset + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> _R
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def half_partition(service: str, ordering_key: bytes | None, transaction_id: bytes, partitions: int) -> int:
    """Return the half partition of a transaction: one for each (service, ordering key).

    Transactions without an ordering key are spread by their id.
    """
    if ordering_key is None:
        return partition_for_key(transaction_id, partitions)
    return partition_for_key(service.encode() + b"\0" + ordering_key, partitions)
