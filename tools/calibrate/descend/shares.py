"""The arithmetic of shares: a fixed mean, a floor, steps, rounding. Plain
Python: tested wherever the project is."""

import math


def _mean(values) -> float:
    return math.fsum(values) / len(values)


def projected(shares: list, mean: float, floor: float) -> list:
    """The nearest shares with this mean, each from `floor` to 1."""
    def shifted(by):
        return [min(max(share + by, floor), 1.0) for share in shares]
    low, high = -max(shares), 1.0 - min(shares)
    for _ in range(60):
        middle = (low + high) / 2
        if _mean(shifted(middle)) < mean:
            low = middle
        else:
            high = middle
    return shifted(high)


class Descent:
    """Moves shares against slopes, keeping their mean.

    A step's length is given: only the slopes' direction counts, since their
    size changes a hundredfold on the way. Two thirds of a step are the
    direction of the steps before: slopes of a few dozen prompts are rough.
    """

    KEPT = 0.67

    def __init__(self, shares: list, mean: float, floor: float):
        self.shares = projected(shares, mean, floor)
        self._mean, self._floor = mean, floor
        self._direction = [0.0] * len(shares)

    def _free(self, slopes) -> list:
        """Without the layers at a limit that the slopes push against it."""
        free = list(range(len(slopes)))
        while True:
            level = _mean([slopes[layer] for layer in free])

            def stays(layer):
                share, slope = self.shares[layer], slopes[layer] - level
                return not (share <= self._floor and slope > 0
                            or share >= 1.0 and slope < 0)
            left = [layer for layer in free if stays(layer)]
            if len(left) == len(free) or not left:
                return free
            free = left

    def step(self, slopes: list, length: float) -> None:
        """`length`: the root mean square of the move, before the limits."""
        free = self._free(slopes)
        level = _mean([slopes[layer] for layer in free])
        move = {layer: level - slopes[layer] for layer in free}
        size = math.sqrt(_mean([by * by for by in move.values()])) or 1.0
        self._direction = [
            self.KEPT * before + (1 - self.KEPT) * move.get(layer, 0.0) / size
            for layer, before in enumerate(self._direction)]
        self.shares = projected(
            [share + length * by
             for share, by in zip(self.shares, self._direction)],
            self._mean, self._floor)


def rounded_weights(shares: list) -> list:
    """Weights with mean 1 in whole thousandths, as a profile file has them."""
    mean = _mean(shares)
    exact = [share / mean * 1000 for share in shares]
    whole = [math.floor(value) for value in exact]
    missing = 1000 * len(whole) - sum(whole)
    for layer in sorted(range(len(whole)),
                        key=lambda at: whole[at] - exact[at])[:missing]:
        whole[layer] += 1
    return [value / 1000 for value in whole]
