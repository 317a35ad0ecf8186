#!/usr/bin/env python3
"""Numerical oracle for Keyformer decoding: slow, plain numpy, written to be read.

It defines what docs/keyformer.md says in words. The engine must agree with it: the same kept
positions, scores and logits (within rounding) for the same model, prompt, policy and seed.

Models: any GGUF file of architecture `llama` (F32/F16/BF16 or quantised; quantised weights are
dequantised). Needs: numpy, and the `gguf` package for reading files.

    python keyformer_oracle.py model.gguf --prompt-ids 1,2,3 --max-new 8 --policy keyformer \
        --ratio 0.5 --recent 0.3 --seed 7 > case.json

Shapes: n prompt tokens, L layers, H query heads, G key/value heads (H % G == 0), d head size.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys

import numpy as np

# ------------------------------------------------------------------------------------------ noise

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def philox4x32(c0, c1, c2, c3, k0: int, k1: int):
    """Philox4x32-10 (Salmon et al., SC'11). Counters: uint32 arrays or ints; returns 4 uint32 arrays."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in np.broadcast_arrays(c0, c1, c2, c3))
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        hi0, lo0 = p0 >> np.uint64(32), p0 & _LOW
        hi1, lo1 = p1 >> np.uint64(32), p1 & _LOW
        c0, c1, c2, c3 = hi1 ^ c1 ^ np.uint64(k0), lo1, hi0 ^ c3 ^ np.uint64(k1), lo0
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))


def _mix(x):
    """lowbias32: a bijection of uint32 that flips each output bit with each input bit about half the time."""
    x = np.asarray(x, dtype=np.uint32)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))


def _unit(r):
    """uint32 -> a number strictly inside (0, 1) that float32 holds exactly."""
    return ((r >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23


PAGE = 16  # tokens of a cache page

GUMBEL_MEAN = 0.5772156649015329
GUMBEL_STD = math.pi / math.sqrt(6.0)


def zeta(kind: str, seed: int, layer: int, head: int, stream: int, query_pos, key_pos, once=False):
    """Noise added to the logit of (query_pos, key_pos); float64, broadcast shape of the two.

    kind: none | constant | gaussian | gumbel. `constant` and `gaussian` have the Gumbel's mean,
    and `gaussian` its variance, as in the paper's ablation. once: one draw per key, whatever the
    query (Algorithm 1 as printed); otherwise one per query and key (the authors' code).
    """
    query_pos, key_pos = np.broadcast_arrays(np.asarray(query_pos), np.asarray(key_pos))
    if once:
        query_pos = np.full(key_pos.shape, 0xFFFFFFFF)
    if kind == "none":
        return np.zeros(key_pos.shape)
    if kind == "constant":
        return np.full(key_pos.shape, GUMBEL_MEAN)
    # Two random words a row (query, head), then two cheap mixing steps a key.
    a, b, _, _ = philox4x32(query_pos, (layer << 16) | head, stream, 0, seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    i = key_pos.astype(np.uint32)
    with np.errstate(over="ignore"):
        u = _unit(_mix(_mix(i ^ a) + b))
        if kind == "gumbel":
            return -np.log(-np.log(u))
        if kind == "gaussian":
            u2 = _unit(_mix(_mix(i ^ b) + a))
            return GUMBEL_MEAN + GUMBEL_STD * np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * u2)
    raise ValueError(f"unknown noise {kind!r}")


# ----------------------------------------------------------------------------------------- policy


CHOICES = {
    "kind": ("full", "window", "h2o", "keyformer", "quest"),
    "basis": ("prompt", "total"),
    "noise": ("gumbel", "gaussian", "constant", "none"),
    "resample": ("step", "once"),
    "scope": ("head", "layer", "model"),
    "positions": ("original", "cache"),
    "score_norm": ("none", "age"),
}


@dataclasses.dataclass
class Policy:
    kind: str = "keyformer"  # full | window | h2o | keyformer | quest
    ratio: float = 0.5  # of the basis; ignored where budget > 0
    budget: int = 0  # k in tokens
    min_tokens: int = 1  # a ratio never gives fewer than this
    basis: str = "prompt"  # prompt | total (prompt + max_new)
    recent: float = 0.3  # w as a share of k; ignored where window >= 0
    window: int = -1  # w in tokens
    sinks: int = 4  # window policy: the first tokens are always kept
    full_layers: int = 2  # quest: the first layers read everything
    tau_init: float = 1.0
    tau_end: float = 2.0
    noise: str = "gumbel"
    resample: str = "step"  # step | once
    scope: str = "head"  # who shares one kept set: head (each kv head its own) | layer | model
    positions: str = "original"  # original | cache (renumbered 0.. in cache order)
    score_queries: int = 0  # prompt rows that are scored: 0 = all, else the last N
    decode_scores: bool = True  # False: the scores stay as the prompt left them
    score_norm: str = "none"  # none | age: divide by the number of scored rows that saw the key
    layer_weights: tuple = ()  # L numbers with mean 1; empty: every layer the same
    seed: int = 0

    def sizes(self, n: int, max_new: int):
        """-> (k, w) in tokens for a prompt of n tokens."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r}: want one of {choices}")
        if not 0 < self.ratio <= 1 or not 0 <= self.recent <= 1 or self.budget < 0 or self.min_tokens < 1:
            raise ValueError("require 0 < ratio <= 1, 0 <= recent <= 1, budget >= 0, min_tokens >= 1")
        if not (self.tau_init > 0 and self.tau_end > 0):
            raise ValueError("require tau > 0")
        if self.window < -1 or min(self.sinks, self.full_layers, self.score_queries) < 0:
            raise ValueError("require window >= -1, sinks, full_layers, score_queries >= 0")
        if self.kind == "full":
            return n + max_new, n + max_new
        k = self.budget
        if not k:
            total = n + (max_new if self.basis == "total" else 0)
            k = max(int(math.floor(self.ratio * total + 1e-9)), self.min_tokens)
        k = max(k, 1)
        if self.kind == "window":
            return k, k - min(self.sinks, k - 1)
        w = self.window if self.window >= 0 else int(math.floor(k * self.recent + 1e-9))
        if not 0 <= w <= k:
            raise ValueError("require 0 <= w <= k")
        return k, w

    def layer_sizes(self, layers: int, n: int, max_new: int):
        """-> [(k, w)] per layer: k of `sizes` times the layer's weight, w in the same proportion."""
        k, w = self.sizes(n, max_new)
        if not len(self.layer_weights):
            return [(k, w)] * layers
        if len(self.layer_weights) != layers or min(self.layer_weights) < 0 or abs(sum(self.layer_weights) / layers - 1) > 1e-6:
            raise ValueError("require one weight >= 0 per layer, mean 1")
        if self.kind in ("full", "quest") or self.scope == "model":
            raise ValueError("layer_weights need an evicting policy and scope head or layer")
        sizes = []
        for weight in self.layer_weights:
            kl = min(max(int(math.floor(k * weight + 1e-9)), 1), n + max_new)
            if self.kind == "window":
                wl = kl - min(self.sinks, kl - 1)
            elif self.window >= 0:
                wl = min(self.window, kl)
            else:
                wl = int(math.floor(kl * self.recent + 1e-9))
            sizes.append((kl, wl))
        return sizes

    def effective(self):
        """-> (noise, tau_init, tau_end): H2O scores plain attention."""
        if self.kind == "keyformer":
            return self.noise, self.tau_init, self.tau_end
        return "none", 1.0, 1.0


def select(positions, scores, k: int, w: int):
    """Indices to keep, in input order: the last w, and of the rest the k-w highest scores.

    positions ascend. Ties go to the earlier position. k >= 1, 0 <= w <= k. Fewer than k: all.
    """
    if k < 1 or not 0 <= w <= k:
        raise ValueError("require k >= 1 and 0 <= w <= k")
    m = len(positions)
    if m <= k:
        return np.arange(m)
    older = m - w
    best = np.lexsort((np.arange(older), -np.asarray(scores)[:older]))[: k - w]
    return np.sort(np.concatenate([best, np.arange(older, m)]).astype(np.int64))


# ------------------------------------------------------------------------------------------ model


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Llama:
    """Weights of a GGUF `llama` model, dequantised. Linear weights are [out, in]."""

    def __init__(self, path: str, dtype=np.float64):
        import gguf

        reader = gguf.GGUFReader(path)
        field = lambda key, default=None: (
            reader.fields[key].contents() if key in reader.fields else default
        )
        arch = field("general.architecture")
        if arch != "llama":
            raise ValueError(f"architecture {arch!r}: the oracle reads llama only")
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv", self.heads)
        self.eps = field("llama.attention.layer_norm_rms_epsilon")
        self.base = field("llama.rope.freq_base", 10000.0)
        self.eos = field("tokenizer.ggml.eos_token_id", -1)
        self.w = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(dtype)
            for t in reader.tensors
        }
        self.hidden = self.w["token_embd.weight"].shape[1]
        self.d = field("llama.attention.key_length", self.hidden // self.heads)
        self.rot = field("llama.rope.dimension_count", self.d)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x, pos):
        """x [m, heads, d], pos [m] or [m, heads]: rotates the adjacent pairs (2i, 2i+1)."""
        pos = np.asarray(pos, dtype=np.float64)
        pos = pos[:, None, None] if pos.ndim == 1 else pos[:, :, None]
        freq = self.base ** (-np.arange(0, self.rot, 2) / self.rot)
        c, s = np.cos(pos * freq), np.sin(pos * freq)
        out = x.copy()
        a, b = x[..., 0 : self.rot : 2], x[..., 1 : self.rot : 2]
        out[..., 0 : self.rot : 2], out[..., 1 : self.rot : 2] = a * c - b * s, a * s + b * c
        return out

    def qkv(self, layer, x):
        b = f"blk.{layer}."
        h = self.norm(x, b + "attn_norm.weight")
        shape = lambda y, heads: y.reshape(len(x), heads, self.d)
        return (
            shape(h @ self.w[b + "attn_q.weight"].T, self.heads),
            shape(h @ self.w[b + "attn_k.weight"].T, self.kv_heads),
            shape(h @ self.w[b + "attn_v.weight"].T, self.kv_heads),
        )

    def finish(self, layer, x, attn):
        """Residual after attention [m, H, d], then the feed-forward block."""
        b = f"blk.{layer}."
        x = x + attn.reshape(len(x), -1) @ self.w[b + "attn_output.weight"].T
        h = self.norm(x, b + "ffn_norm.weight")
        gate = h @ self.w[b + "ffn_gate.weight"].T
        up = h @ self.w[b + "ffn_up.weight"].T
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.w[b + "ffn_down.weight"].T

    def logits(self, x):
        out = self.w.get("output.weight", self.w["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ out.T


class Cache:
    """One layer of one request: per kv head, positions [m], raw (unrotated) keys [m, d], values, scores."""

    def __init__(self, layer: int, kv_heads: int):
        self.layer = layer
        self.pos = [None] * kv_heads
        self.k = [None] * kv_heads
        self.v = [None] * kv_heads
        self.score = [None] * kv_heads
        self.seen = [None] * kv_heads  # scored rows that saw the key

    def keep(self, g, idx):
        for part in (self.pos, self.k, self.v, self.score, self.seen):
            part[g] = part[g][idx]


class Session:
    """One request decoded under one policy."""

    def __init__(self, model: Llama, policy: Policy, max_new: int, stream: int = 0):
        self.m, self.p, self.max_new, self.stream = model, policy, max_new, stream
        self.cache = [Cache(layer, model.kv_heads) for layer in range(model.layers)]
        self.noise, self.tau_init, self.tau_end = policy.effective()

    def tau(self, step: int) -> float:
        """Temperature of decode step `step` (the prompt is step 0, the first generated token's pass 1)."""
        if self.max_new < 1:
            return self.tau_init
        t = self.tau_init + step * (self.tau_end - self.tau_init) / self.max_new
        return min(t, self.tau_end) if self.tau_end >= self.tau_init else max(t, self.tau_end)

    def _evict(self, caches, whole_model: bool):
        """Reduces each of `caches` to k tokens a head; called once a layer, and once a pass for all."""
        if self.p.kind in ("full", "quest") or (self.p.scope == "model") != whole_model:
            return
        shared = None
        if self.p.scope != "head":
            shared = sum(s for cache in caches for s in cache.score)
        for cache in caches:
            k, w = self.layer_k_w[cache.layer]
            for g in range(self.m.kv_heads):
                s = cache.score[g] if shared is None else shared
                if self.p.score_norm == "age":
                    s = s / cache.seen[g]
                if self.p.kind == "window":  # the sinks win whatever they score
                    s = np.where(cache.pos[g] < self.p.sinks, 1.0, 0.0)
                cache.keep(g, select(cache.pos[g], s, k, w))

    def _zeta(self, layer, head, query_pos, key_pos):
        stream = self.stream if self.step else 0  # all samples of a request share the prompt's noise
        return zeta(self.noise, self.p.seed, layer, head, stream, query_pos, key_pos,
                    self.p.resample == "once")

    def _quest_pages(self, layer, q, pos):
        """Quest: page numbers read per kv head, or None for all. q [1, H, d] before rotation."""
        m = self.m
        if self.p.kind != "quest" or layer < self.p.full_layers:
            return None
        count, last = -(-self.k // PAGE), pos // PAGE
        read = []
        qr = m.rope(q, np.array([pos]))[0]
        for g in range(m.kv_heads):
            kr = m.rope(self.cache[layer].k[g][:, None, :], self.cache[layer].pos[g])[:, 0]
            bound = np.full(last + 1, -np.inf)
            for page in range(last + 1):
                keys = kr[page * PAGE : (page + 1) * PAGE]
                low, high = keys.min(0), keys.max(0)
                for h in range(g * m.heads // m.kv_heads, (g + 1) * m.heads // m.kv_heads):
                    bound[page] = max(bound[page], np.maximum(qr[h] * low, qr[h] * high).sum())
            bound[last] = np.inf
            read.append(np.lexsort((np.arange(last + 1), -bound))[:count])
        return read

    def prefill(self, ids):
        """ids [n] -> logits of the last prompt token [vocab]."""
        m, n = self.m, len(ids)
        self.n, self.next_pos, self.step = n, n, 0
        self.k, self.w = self.p.sizes(n, self.max_new)
        self.layer_k_w = self.p.layer_sizes(m.layers, n, self.max_new)
        pos = np.arange(n)
        x = m.w["token_embd.weight"][np.asarray(ids)]
        causal = pos[None, :] <= pos[:, None]
        first_row = max(n - self.p.score_queries, 0) if self.p.score_queries else 0
        for layer in range(m.layers):
            q, k, v = m.qkv(layer, x)
            qr, kr = m.rope(q, pos), m.rope(k, pos)
            out = np.empty_like(q)
            cache = self.cache[layer]
            for g in range(m.kv_heads):
                cache.pos[g], cache.k[g], cache.v[g] = pos.copy(), k[:, g], v[:, g]
                cache.score[g] = np.zeros(n)
                cache.seen[g] = np.minimum(n - pos, n - first_row).astype(np.float64)
            for h in range(m.heads):
                g = h // (m.heads // m.kv_heads)
                logit = np.where(causal, qr[:, h] @ kr[:, g].T / math.sqrt(m.d), -np.inf)
                out[:, h] = softmax(logit) @ v[:, g]
                if self.p.kind in ("h2o", "keyformer"):
                    noise = self._zeta(layer, h, pos[first_row:, None], pos[None, :])
                    cache.score[g] += softmax((logit[first_row:] + noise) / self.tau_init).sum(0)
            x = m.finish(layer, x, out)
            self._evict([cache], whole_model=False)
        self._evict(self.cache, whole_model=True)
        return m.logits(x[-1:])[0]

    def decode(self, token: int):
        """Feeds one token, returns the next logits [vocab]; evicts after the attention of each layer."""
        m, pos = self.m, self.next_pos
        self.next_pos += 1
        self.step += 1
        tau = self.tau(self.step)
        x = m.w["token_embd.weight"][[token]]
        for layer in range(m.layers):
            q, k, v = m.qkv(layer, x)
            out = np.empty_like(q)
            cache = self.cache[layer]
            for g in range(m.kv_heads):
                cache.pos[g] = np.append(cache.pos[g], pos)
                cache.k[g] = np.vstack([cache.k[g], k[:, g]])
                cache.v[g] = np.vstack([cache.v[g], v[:, g]])
                cache.score[g] = np.append(cache.score[g], 0.0)
                cache.seen[g] = np.append(cache.seen[g] + (1.0 if self.p.decode_scores else 0.0), 1.0)
            read = self._quest_pages(layer, q, pos)
            for h in range(m.heads):
                g = h // (m.heads // m.kv_heads)
                key_pos = cache.pos[g]
                at = key_pos if self.p.positions == "original" else np.arange(len(key_pos))
                kr = m.rope(cache.k[g][:, None, :], at)[:, 0]
                qr = m.rope(q[:, h][:, None, :], at[-1:])[0, 0]
                logit = kr @ qr / math.sqrt(m.d)
                if read is not None:
                    logit = np.where(np.isin(key_pos // PAGE, read[g]), logit, -np.inf)
                out[0, h] = softmax(logit) @ cache.v[g]
                if self.p.kind in ("h2o", "keyformer") and self.p.decode_scores:
                    noise = self._zeta(layer, h, pos, key_pos)
                    cache.score[g] += softmax((logit + noise) / tau)
            x = m.finish(layer, x, out)
            self._evict([cache], whole_model=False)
        self._evict(self.cache, whole_model=True)
        return m.logits(x)[0]


def generate(model, policy, ids, max_new, forced=None, ignore_eos=False, stream=0):
    """Greedy (or teacher-forced by `forced`) decoding; a dict of tokens, logprobs and kept positions."""
    if forced is not None:
        max_new = len(forced)
    s = Session(model, policy, max_new, stream)
    logits = s.prefill(ids)
    result = {"k": int(s.k), "w": int(s.w), "tokens": [], "logprobs": [], "kept_after_prompt": s_kept(s)}
    for t in range(max_new):
        token = int(logits.argmax()) if forced is None else int(forced[t])
        shifted = logits - logits.max()
        result["tokens"].append(token)
        result["logprobs"].append(float(shifted[token] - np.log(np.exp(shifted).sum())))
        if (forced is None and not ignore_eos and token == model.eos) or t == max_new - 1:
            break
        logits = s.decode(token)
    result["kept_at_end"] = s_kept(s)
    result["scores_at_end"] = [[[round(float(z), 9) for z in c.score[g]] for g in range(model.kv_heads)] for c in s.cache]
    return result


class BeamSession(Session):
    """Beams of one request: each has its own keys and values, all share positions, scores and so the kept set.

    The prompt's scores count width times; a decode step adds the row of every beam.
    """

    def __init__(self, model, policy, max_new, width):
        super().__init__(model, policy, max_new)
        self.width = width

    def prefill(self, ids):
        logits = super().prefill(ids)
        for cache in self.cache:
            cache.k = [[k.copy() for _ in range(self.width)] for k in cache.k]  # [G][width][m, d]
            cache.v = [[v.copy() for _ in range(self.width)] for v in cache.v]
            cache.score = [s * self.width for s in cache.score]
        return logits

    def reorder(self, parents):
        for cache in self.cache:
            cache.k = [[kg[b] for b in parents] for kg in cache.k]
            cache.v = [[vg[b] for b in parents] for vg in cache.v]

    def decode_beams(self, tokens):
        """tokens [width] -> logits [width, vocab]."""
        m, pos = self.m, self.next_pos
        self.next_pos += 1
        self.step += 1
        tau = self.tau(self.step)
        x = m.w["token_embd.weight"][list(tokens)]
        for layer in range(m.layers):
            q, k, v = m.qkv(layer, x)
            out = np.empty_like(q)
            cache = self.cache[layer]
            for g in range(m.kv_heads):
                cache.pos[g] = np.append(cache.pos[g], pos)
                cache.k[g] = [np.vstack([old, k[b : b + 1, g]]) for b, old in enumerate(cache.k[g])]
                cache.v[g] = [np.vstack([old, v[b : b + 1, g]]) for b, old in enumerate(cache.v[g])]
                cache.score[g] = np.append(cache.score[g], 0.0)
                cache.seen[g] = np.append(cache.seen[g] + (1.0 if self.p.decode_scores else 0.0), 1.0)
            for h in range(m.heads):
                g = h // (m.heads // m.kv_heads)
                key_pos = cache.pos[g]
                at = key_pos if self.p.positions == "original" else np.arange(len(key_pos))
                noise = self._zeta(layer, h, pos, key_pos)
                for b in range(self.width):
                    kr = m.rope(cache.k[g][b][:, None, :], at)[:, 0]
                    logit = kr @ m.rope(q[b : b + 1, h][:, None, :], at[-1:])[0, 0] / math.sqrt(m.d)
                    out[b, h] = softmax(logit) @ cache.v[g][b]
                    if self.p.kind in ("h2o", "keyformer") and self.p.decode_scores:
                        cache.score[g] += softmax((logit + noise) / tau)
            x = m.finish(layer, x, out)
            self._evict_beams([cache], whole_model=False)
        self._evict_beams(self.cache, whole_model=True)
        return m.logits(x)

    def _evict_beams(self, caches, whole_model):
        """The rule of _evict; keys and values of every beam follow the shared indices."""
        saved = [(c.k, c.v) for c in caches]
        for c in caches:
            c.k = [np.arange(len(p)) for p in c.pos]  # let _evict move indices instead
            c.v = [np.zeros(len(p)) for p in c.pos]
        self._evict(caches, whole_model)
        for c, (k, v) in zip(caches, saved):
            kept = c.k
            c.k = [[kb[i] for kb in kg] for kg, i in zip(k, kept)]
            c.v = [[vb[i] for vb in vg] for vg, i in zip(v, kept)]


def beam_search(model, policy, ids, max_new, width, length_penalty=1.0, early_stopping=False, ignore_eos=False):
    """-> up to `width` (score, tokens), best first; score = sum of logprobs / generated length ** length_penalty.

    A step ranks all (beam, token) by summed logprob, ties to the earlier beam, then the smaller token. Of the best
    2 * width, those that end with EOS are finished if they rank among the first `width`; the best `width` others live on.
    It stops at max_new, or when `width` are finished and (early_stopping, or the best live beam cannot beat the worst of them
    at its present length).
    """
    if policy.kind == "quest":
        raise ValueError("beams with quest are not defined")
    s = BeamSession(model, policy, max_new, width)
    logits = s.prefill(ids)[None]
    live, done = [(0.0, [])], []
    norm = lambda total, length: total / max(length, 1) ** length_penalty
    for t in range(max_new):
        shifted = logits - logits.max(-1, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        total = np.array([score for score, _ in live])[:, None] + logp
        flat = np.lexsort((np.arange(total.size), -total.ravel()))[: 2 * width]
        parents, survivors = [], []
        for rank, at in enumerate(flat):
            b, token = divmod(int(at), total.shape[1])
            tokens = live[b][1] + [token]
            if token == model.eos and not ignore_eos:
                if rank < width:
                    done.append((norm(total.ravel()[at], len(tokens)), tokens))
            elif len(survivors) < width:
                parents.append(b)
                survivors.append((total.ravel()[at], tokens))
        done = sorted(done, key=lambda d: -d[0])[:width]
        live = survivors
        if len(done) == width and (early_stopping or norm(live[0][0], t + 1) <= done[-1][0]):
            live = []
            break
        if t == max_new - 1:
            break
        s.reorder(parents if t else [0] * width)
        logits = s.decode_beams([tokens[-1] for _, tokens in live])
    done += [(norm(total, len(tokens)), tokens) for total, tokens in live]
    done = sorted(done, key=lambda d: -d[0])[:width]
    return [(float(score), tokens) for score, tokens in done], s_kept(s)


def s_kept(s: Session):
    return [[[int(i) for i in c.pos[g]] for g in range(s.m.kv_heads)] for c in s.cache]


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--prompt-ids", required=True, help="comma-separated token ids, or @FILE")
    ap.add_argument("--force-ids", help="teacher-force these instead of greedy choices")
    ap.add_argument("--max-new", type=int, default=16)
    ap.add_argument("--ignore-eos", action="store_true")
    ap.add_argument("--stream", type=int, default=0, help="index of the sample inside its request")
    ap.add_argument("--beam-width", type=int, default=0)
    ap.add_argument("--length-penalty", type=float, default=1.0)
    ap.add_argument("--early-stopping", action="store_true")
    ap.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    for f in dataclasses.fields(Policy):
        flag = "--" + f.name.replace("_", "-") if f.name != "kind" else "--policy"
        if f.type == "tuple":
            ap.add_argument(flag, dest=f.name, type=lambda s: tuple(float(x) for x in s.split(",")), default=f.default)
        elif f.type == "bool":
            ap.add_argument(flag, dest=f.name, type=lambda s: s.lower() in ("1", "true", "yes"), default=f.default)
        else:
            ap.add_argument(flag, dest=f.name, type={"str": str, "int": int, "float": float}[f.type], default=f.default)
    a = ap.parse_args(argv)
    read = lambda s: [int(x) for x in (open(s[1:]).read() if s.startswith("@") else s).replace(",", " ").split()]
    policy = Policy(**{f.name: getattr(a, f.name) for f in dataclasses.fields(Policy)})
    model = Llama(a.model, np.dtype(a.dtype).type)
    if a.beam_width:
        beams, kept = beam_search(model, policy, read(a.prompt_ids), a.max_new, a.beam_width, a.length_penalty, a.early_stopping, a.ignore_eos)
        result = {"beams": beams, "kept_at_end": kept}
    else:
        result = generate(model, policy, read(a.prompt_ids), a.max_new, read(a.force_ids) if a.force_ids else None, a.ignore_eos, a.stream)
    json.dump({"policy": dataclasses.asdict(policy), **result}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
