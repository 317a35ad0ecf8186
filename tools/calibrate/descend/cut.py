"""How forced tokens fare after a prompt whose keys were cut.

A batch's prompts are in memory whole, as keys, values and scores; only the few
tokens that follow are computed anew, under any cut:

- hard: what the server does, token by token, evictions while decoding too;
- soft: a key is seen with a weight between 0 and 1 that has a slope by its
  layer's share.

Shapes as in model.py; N prompt tokens with padding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from . import model as llama

NEVER = np.iinfo(np.int32).max  # the least budget of padding
TAU_INIT, TAU_END = 1.0, 2.0  # the server's defaults


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """B probes of a kind; arrays of jax or numpy."""

    keys: jax.Array  # [L, B, N, G, d], rotated
    values: jax.Array  # [L, B, N, G, d]
    scores: jax.Array  # [L, B, G, N], after the prompt
    least: jax.Array  # [L, B, G, N] int32, least_budgets; padding NEVER
    prompt_tokens: jax.Array  # [B]
    forced_tokens: jax.Array  # [B], of them the last is never fed
    fed: jax.Array  # [B, T] ids; padded
    wanted: jax.Array  # [B, T] ids: what follows each fed token
    counts: jax.Array  # [B, T] 1.0, padding 0.0


def _keys_and_values(layer, k, v):
    keys, values = layer
    # [B, G, N + T, d]: the prompt's, then the fed tokens' own.
    join = lambda a, b: jnp.concatenate([a, b], 1).swapaxes(1, 2)
    return join(keys, k), join(values, v)


def _embed(parts, batch):
    _, embedding, _ = parts
    positions = batch.prompt_tokens[:, None] + jnp.arange(batch.fed.shape[1])
    return embedding[batch.fed], positions


def _soft_bias(least, share, n, steps: int, width: float):
    """[B, G, T, N]: the logarithm of each key's weight. 0 at share 1, where
    nothing is cut; each fed token costs the prompt one key."""
    left = share - jnp.arange(steps) / n[:, None]  # [B, T]
    # In the middle of a key's own place: budgets from least on have it.
    at = (least - 0.5) / n[:, None, None]  # [B, G, N]
    weight = lambda s: jax.nn.log_sigmoid((s - at[:, :, None]) / width)
    bias = weight(left[:, None, :, None]) - weight(1.0)
    return jnp.where(least[:, :, None] == NEVER, -jnp.inf, bias)


def _soft_attention(cached, least, share, n, width):
    def attend(q, k, v):
        steps = q.shape[1]
        keys, values = _keys_and_values(cached, k, v)
        logits = jnp.einsum("btgrd,bgnd->bgrtn", q, keys,
                            precision=llama.HIGHEST)
        own = jnp.where(jnp.tri(steps, dtype=bool), 0.0, -jnp.inf)
        own = jnp.broadcast_to(own, (*least.shape[:2], steps, steps))
        bias = _soft_bias(least, share, n, steps, width)
        bias = jnp.concatenate([bias, own], -1)[:, :, None]
        weights = jax.nn.softmax(logits + bias, -1)
        return jnp.einsum("bgrtn,bgnd->btgrd", weights, values,
                          precision=llama.HIGHEST), None
    return attend


def soft(parts, shape, shares, batch: Batch, width: float):
    """shares [L] -> what the last layer gives for each fed token."""
    x, positions = _embed(parts, batch)

    # Without what is computed in between, which is computed again for the
    # slopes: a layer's attention is a thousand times its input.
    @jax.checkpoint
    def layer(x, xs):
        w, keys, values, least, share = xs
        attend = _soft_attention((keys, values), least, share,
                                 batch.prompt_tokens, width)
        return llama.block(shape, w, x, positions, attend)
    x, _ = jax.lax.scan(layer, x, (parts[0], batch.keys, batch.values,
                                   batch.least, shares))
    return x


def _evict(held, score, k, w):
    """Where a head holds more than k, the lowest-scored key outside the newest
    w goes; ties: the latest. held, score [B, G, M]; k, w [B]."""
    from_end = jnp.flip(jnp.cumsum(jnp.flip(held, -1), -1), -1)
    candidate = held & (from_end > w[:, None, None])
    against = jnp.where(candidate, score, jnp.inf)
    last = held.shape[-1] - 1 - jnp.argmin(jnp.flip(against, -1), -1)
    full = from_end[..., 0] > k[:, None]
    goes = (jnp.arange(held.shape[-1]) == last[..., None]) & full[..., None]
    return held & ~goes


def _hard_attention(cached, scores, held, k_l, w_l, forced_tokens):
    """scores, held [B, G, N]; k_l, w_l, forced_tokens [B]."""
    prompt = held.shape[-1]

    def attend(q, k, v):
        steps = q.shape[1]
        keys, values = _keys_and_values(cached, k, v)

        def step(carry, t):
            held, score = carry
            held = held.at[..., prompt + t].set(True)
            logits = jnp.einsum("bgrd,bgnd->bgrn", q[:, t], keys,
                                precision=llama.HIGHEST)
            logits = jnp.where(held[:, :, None], logits, -jnp.inf)
            out = jnp.einsum("bgrn,bgnd->bgrd", jax.nn.softmax(logits, -1),
                             values, precision=llama.HIGHEST)
            tau = jnp.minimum(
                TAU_INIT + (t + 1) * (TAU_END - TAU_INIT) / forced_tokens,
                TAU_END)[:, None, None, None]
            score = score + jax.nn.softmax(logits / tau, -1).sum(2)
            return (_evict(held, score, k_l, w_l), score), out
        more = ((0, 0), (0, 0), (0, steps))
        _, out = jax.lax.scan(step, (jnp.pad(held, more),
                                     jnp.pad(scores, more)),
                              jnp.arange(steps))
        return out.swapaxes(0, 1), None
    return attend


def hard(parts, shape, k_l, w_l, batch: Batch):
    """k_l, w_l [L, B] tokens -> what the last layer gives for each fed token,
    as the server has it with KEYFORMER, no noise and scope head."""
    x, positions = _embed(parts, batch)

    def layer(x, xs):
        w, keys, values, scores, least, k, recent = xs
        held = least <= k[:, None, None]
        held &= least != NEVER
        attend = _hard_attention((keys, values), scores, held, k, recent,
                                 batch.forced_tokens)
        return llama.block(shape, w, x, positions, attend)
    x, _ = jax.lax.scan(layer, x, (parts[0], batch.keys, batch.values,
                                   batch.scores, batch.least, k_l, w_l))
    return x


def _losses(found, batch: Batch, whole):
    """Sums over the fed tokens: NLL, and the divergence from `whole`, the
    log-likelihoods with everything kept (0 where None)."""
    nll = -jnp.take_along_axis(found, batch.wanted[..., None], -1)[..., 0]
    nll = (nll * batch.counts).sum()
    if whole is None:
        return nll, jnp.zeros(())
    apart = (jnp.exp(whole) * (whole - found)).sum(-1)
    return nll, (apart * batch.counts).sum()


def _output(model):
    return model.output_norm, model.output


def _parts(model):
    return model.layers, model.embedding, _output(model)


@functools.partial(jax.jit, static_argnames=("shape",))
def _hard_losses(parts, k_l, w_l, batch, whole, *, shape):
    x = hard(parts, shape, k_l, w_l, batch)
    found = llama.log_likelihoods(parts[2], shape, x)
    return (*_losses(found, batch, whole), found)


def hard_losses(model, k_l, w_l, batch: Batch, whole=None):
    """-> (NLL, divergence from `whole`, log-likelihoods [B, T, V]); sums."""
    return _hard_losses(_parts(model), k_l, w_l, batch, whole,
                        shape=model.shape)


@functools.partial(jax.jit, static_argnames=("shape", "text_weight"))
def _soft_slopes(parts, shares, batch, whole, width, *, shape, text_weight):
    def loss(shares):
        x = soft(parts, shape, shares, batch, width)
        nll, apart = _losses(llama.log_likelihoods(parts[2], shape, x), batch,
                             whole)
        return nll if whole is None else text_weight * apart, (nll, apart)
    (_, sums), slopes = jax.value_and_grad(loss, has_aux=True)(shares)
    return sums, slopes


def soft_slopes(model, shares, batch: Batch, width, text_weight, whole=None):
    """-> ((NLL, divergence), slopes [L]); sums. The slopes are those of the NLL
    or, where there is a `whole`, of text_weight x the divergence from it."""
    return _soft_slopes(_parts(model), shares, batch, whole, width,
                        shape=model.shape, text_weight=text_weight)
