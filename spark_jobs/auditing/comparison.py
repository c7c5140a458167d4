"""Two sides of the same records, compared by numbers and hashes: one aggregate, whatever the sides are. Pure."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one side has of a topic, beside what the other has.

    Args:
        part: The partition, or the hour.
        offsets: The first ones that differ, where a side has offsets.
    """

    topic: str
    part: int | str
    expected: int
    found: int
    differs: bool
    offsets: tuple[int, ...] = ()


def compare(expected: DataFrame, found: DataFrame, *by: str) -> DataFrame:
    """Return numbers of both sides and whether they differ, for each group.

    Args:
        expected: A row for each record, with the columns of the groups and `hash`; no two are the same.
        found: The other side.
    """
    sides = [side.select(*by, "hash", f.lit(number).alias("side")) for number, side in enumerate((expected, found))]
    numbers = [f.count_if(f.col("side") == number).alias(name) for number, name in enumerate(("expected", "found"))]
    # A hash that both sides have once cancels itself out; unlike a sum, this never overflows.
    counted = sides[0].union(sides[1]).groupBy(*by).agg(*numbers, f.bit_xor("hash").alias("rest"))
    return counted.withColumn("differs", (f.col("expected") != f.col("found")) | (f.col("rest") != 0))
