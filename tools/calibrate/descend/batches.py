"""Probes with their prompts computed, in batches of alike lengths."""

import dataclasses

import jax
import numpy as np

from . import cut, model as llama, order, probes

# Tokens that are fed at once. More gain nothing on a CPU; what is held for the
# slopes grows with them.
FED_AT_ONCE = 160


@dataclasses.dataclass
class Computed:
    """A batch, and what it is measured against."""

    kind: str  # of probes.KINDS
    batch: cut.Batch
    whole: object = None  # texts: log-likelihoods with everything kept


def _groups(found) -> list:
    """Lists of probes that become a batch each: of one padded length."""
    alike = {}
    for probe in found:
        alike.setdefault((probe.kind, llama.padded(len(probe.prompt))),
                         []).append(probe)
    groups = []
    for _, members in sorted(alike.items(), key=lambda item: item[0]):
        longest = max(len(probe.forced) - 1 for probe in members)
        most = max(1, FED_AT_ONCE // longest)
        # Even sizes: each size is compiled by itself.
        count = -(-len(members) // most)
        size = -(-len(members) // count)
        groups += [members[i:i + size] for i in range(0, len(members), size)]
    return groups


def cache_bytes(shape: llama.Shape, found) -> int:
    return sum(shape.cache_bytes(llama.padded(len(probe.prompt)))
               for probe in found)


def _fed(group):
    steps = max(len(probe.forced) for probe in group) - 1
    fed = np.zeros((len(group), steps), np.int32)
    wanted, counts = np.zeros_like(fed), np.zeros(fed.shape, np.float32)
    for row, probe in enumerate(group):
        count = len(probe.forced) - 1
        fed[row, :count] = probe.forced[:-1]
        wanted[row, :count] = probe.forced[1:]
        counts[row, :count] = 1.0
    return fed, wanted, counts


def _compute(model, group, score_queries: int, recent_ratio: float, done):
    shape = model.shape
    length = llama.padded(len(group[0].prompt))
    heads = (shape.layers, len(group))
    keys = np.empty((*heads, length, shape.kv_heads, shape.head_dim),
                    np.float32)
    values = np.empty_like(keys)
    scores = np.zeros((*heads, shape.kv_heads, length), np.float32)
    least = np.full(scores.shape, cut.NEVER, np.int32)
    for row, probe in enumerate(group):
        k, v, score = llama.prompt(model, probe.prompt, score_queries)
        keys[:, row], values[:, row] = k, v
        n = len(probe.prompt)
        scores[:, row, :, :n] = np.asarray(score)[..., :n]
        for head in np.ndindex(shape.layers, shape.kv_heads):
            at = (head[0], row, head[1], slice(n))
            least[at] = order.least_budgets(scores[at].tolist(), recent_ratio)
        done(n)
    fed, wanted, counts = _fed(group)
    return jax.device_put(cut.Batch(
        keys=keys, values=values, scores=scores, least=least,
        prompt_tokens=np.array([len(probe.prompt) for probe in group],
                               np.int32),
        forced_tokens=np.array([len(probe.forced) for probe in group],
                               np.float32),
        fed=fed, wanted=wanted, counts=counts))


def compute(model, found, score_queries: int, recent_ratio: float,
            done=lambda tokens: None) -> list:
    """[Computed] of all probes. `done` hears of each prompt's tokens."""
    computed = []
    for group in _groups(found):
        batch = _compute(model, group, score_queries, recent_ratio, done)
        entry = Computed(group[0].kind, batch)
        if entry.kind == "text":
            entry.whole = _hard(model, entry, None, 1.0, recent_ratio)[2]
        computed.append(entry)
    return computed


def _hard(model, entry: Computed, weights, ratio: float, recent_ratio: float):
    """`weights` None: everything kept."""
    batch, layers = entry.batch, model.shape.layers
    sizes = [(int(n), int(t))
             for n, t in zip(batch.prompt_tokens, batch.forced_tokens)]
    if weights is None:
        k_l = [[n + t] * layers for n, t in sizes]
    else:
        k_l = [order.layer_budgets(weights, ratio, n, t) for n, t in sizes]
    w_l = [[order.recent(k, recent_ratio) for k in row] for row in k_l]
    return cut.hard_losses(model, np.array(k_l, np.int32).T,
                           np.array(w_l, np.int32).T, batch, entry.whole)


@dataclasses.dataclass(frozen=True)
class Losses:
    """Nats per token, over all fed tokens of a kind."""

    fact_nll: float
    text_nll: float
    text_divergence: float  # from everything kept

    def total(self, text_weight: float) -> float:
        return self.fact_nll + text_weight * self.text_divergence


class _Sums:
    def __init__(self):
        self._sums = {kind: np.zeros(3) for kind in probes.KINDS}

    def add(self, entry: Computed, nll, apart) -> None:
        self._sums[entry.kind] += [float(nll), float(apart),
                                   float(entry.batch.counts.sum())]

    def losses(self) -> Losses:
        fact, text = (self._sums[kind] for kind in probes.KINDS)
        return Losses(fact[0] / fact[2], text[0] / text[2], text[1] / text[2])


def measure(model, computed, weights, ratio: float,
            recent_ratio: float) -> Losses:
    """Under the hard cut, as the server does it; `weights` as of a profile,
    None: everything kept."""
    sums = _Sums()
    for entry in computed:
        nll, apart, _ = _hard(model, entry, weights, ratio, recent_ratio)
        sums.add(entry, nll, apart)
    return sums.losses()


def slopes(model, computed, shares, width: float, text_weight: float):
    """(Losses, slopes [L] of Losses.total) under the softened cut."""
    sums, slope = _Sums(), np.zeros(len(shares))
    tokens = {kind: sum(float(entry.batch.counts.sum()) for entry in computed
                        if entry.kind == kind) for kind in probes.KINDS}
    for entry in computed:
        (nll, apart), found = cut.soft_slopes(
            model, np.asarray(shares, np.float32), entry.batch, width,
            text_weight, entry.whole)
        sums.add(entry, nll, apart)
        slope += np.asarray(found, np.float64) / tokens[entry.kind]
    return sums.losses(), slope.tolist()
