"""In which order a growing budget takes a prompt's keys, and whole budgets.

With a larger budget a head keeps what it kept with a smaller one, and one key
more: so one number a key, the smallest budget that has it, tells every cut.
Plain Python: tested wherever the project is.
"""

import math


def recent(k: int, recent_ratio: float) -> int:
    """w of a budget of k tokens."""
    return math.floor(recent_ratio * k + 1e-9)


def layer_budgets(weights, ratio: float, n: int, forced: int) -> list:
    """[L]: k_l of a prompt of n tokens, as the server has it (min_tokens 1,
    basis prompt)."""
    k = max(math.floor(ratio * n + 1e-9), 1)
    return [min(max(math.floor(k * weight + 1e-9), 1), n + forced)
            for weight in weights]


def least_budgets(scores: list, recent_ratio: float) -> list:
    """One head's scores [n] -> [n]: the smallest budget in tokens, 1 to n, with
    which each key is kept. Ties go to the earlier key; recent_ratio 0 to 1."""
    n = len(scores)
    by_score = sorted(range(n), key=lambda key: -scores[key])  # stable
    least, window, at = [0] * n, 0, 0
    for k in range(1, n + 1):
        key = None
        if recent(k, recent_ratio) > window:
            window += 1
            # The window's new key, unless its score has kept it before.
            key = n - window if not least[n - window] else None
        if key is None:
            while least[by_score[at]]:
                at += 1
            key = by_score[at]
        least[key] = k
    return least
