"""Confidence intervals: Wilson's for shares, a paired bootstrap for means."""

import math
import random
import statistics

Z95 = 1.959963984540054


def wilson(hits: int, total: int, z: float = Z95) -> tuple:
    """The 95 % interval of a share of `hits` in `total` trials; (0, 1) for no
    trials."""
    if total == 0:
        return 0.0, 1.0
    share = hits / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total
                           + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread)
                                                    / scale)


def bootstrap_mean(values, rounds: int = 2000, seed: int = 1) -> tuple:
    """The 95 % interval of the mean of `values` by resampling them whole (one
    value per text: tokens of a text are not independent). For paired
    differences hand in the differences."""
    values = list(values)
    if not values:
        return 0.0, 0.0
    if len(values) == 1:
        return values[0], values[0]
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values)))
                   for _ in range(rounds))
    return (means[int(0.025 * rounds)],
            means[min(rounds - 1, int(0.975 * rounds))])


def excludes_chance(hits: int, total: int, chance: float) -> bool:
    """Whether the interval of the share lies above `chance`."""
    return wilson(hits, total)[0] > chance
