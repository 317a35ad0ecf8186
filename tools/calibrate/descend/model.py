"""A llama decoder of a GGUF file in JAX, in f32: what the server computes.

Shapes: B probes, T tokens fed, N prompt tokens with padding, L layers, H query
heads, G key/value heads, R = H / G, d head size, V vocabulary.
"""

import dataclasses
import functools

import gguf
import jax
import jax.numpy as jnp
import numpy as np

HIGHEST = jax.lax.Precision.HIGHEST


class Unsupported(Exception):
    """The file holds something that would be computed wrongly."""


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    norm_eps: float
    vocabulary: int

    @property
    def group(self) -> int:
        """R: the query heads that share a key/value head."""
        return self.heads // self.kv_heads

    def cache_bytes(self, tokens: int) -> int:
        """Of keys, values, scores and orders of `tokens` tokens."""
        return self.layers * self.kv_heads * tokens * 4 * (2 * self.head_dim + 2)


# Keys that change what is computed; the server refuses them too.
_REFUSED = ("llama.attention.scale", "llama.attention.clamp_kqv",
            "llama.attn_logit_softcapping", "llama.final_logit_softcapping",
            "llama.embedding_scale", "llama.residual_scale",
            "llama.logit_scale")
_OF_A_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
               "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def _check(field, tensors) -> None:
    architecture = field("general.architecture", "none")
    if architecture != "llama":
        raise Unsupported(f"architecture {architecture}: only llama")
    for key in _REFUSED:
        if field(key) is not None:
            raise Unsupported(f"key {key}")
    for key in ("llama.expert_count", "llama.attention.sliding_window"):
        if field(key, 0):
            raise Unsupported(f"key {key}: {field(key)}")
    scaling = field("llama.rope.scaling.type", "none")
    factors = [field("llama.rope.scaling.factor", 1.0),
               field("llama.rope.scale_linear", 1.0)]
    scaled = scaling != "none" or (
        field("llama.rope.scaling.type") is None and factors != [1.0, 1.0])
    if scaled or "rope_freqs.weight" in tensors:
        raise Unsupported("rotary scaling")
    if field("llama.attention.causal", True) is not True:
        raise Unsupported("attention that is not causal")


def _shape(field, vocabulary: int) -> Shape:
    def need(key):
        value = field(key)
        if value is None:
            raise Unsupported(f"key {key} is missing")
        return value
    heads = need("llama.attention.head_count")
    kv_heads = field("llama.attention.head_count_kv", heads)
    if not isinstance(kv_heads, int) or not isinstance(heads, int):
        raise Unsupported("head counts that differ by layer")
    head_dim = field("llama.attention.key_length",
                     need("llama.embedding_length") // heads)
    return Shape(layers=need("llama.block_count"), heads=heads,
                 kv_heads=kv_heads, head_dim=head_dim,
                 rotary_dim=field("llama.rope.dimension_count", head_dim),
                 rope_base=field("llama.rope.freq_base", 10000.0),
                 norm_eps=need("llama.attention.layer_norm_rms_epsilon"),
                 vocabulary=vocabulary)


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    shape: Shape
    # attn_norm, ... : [L, ...]; matrices are [L, out, in].
    layers: dict
    embedding: jax.Array  # [V, hidden]
    output_norm: jax.Array
    output: jax.Array  # [V, hidden]; the embedding where that is tied


def load(path) -> Model:
    """Raises Unsupported; OSError and ValueError for no file, or no GGUF."""
    reader = gguf.GGUFReader(str(path))

    def field(key, default=None):
        found = reader.fields.get(key)
        return default if found is None else found.contents()
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    _check(field, tensors)

    def dense(name):
        if name not in tensors:
            raise Unsupported(f"tensor {name} is missing")
        tensor = tensors.pop(name)
        return gguf.quants.dequantize(
            tensor.data, tensor.tensor_type).astype(np.float32)
    embedding = jnp.asarray(dense("token_embd.weight"))
    tied = "output.weight" not in tensors
    shape = _shape(field, embedding.shape[0])
    layers = {
        part: jnp.asarray(np.stack([dense(f"blk.{layer}.{part}.weight")
                                    for layer in range(shape.layers)]))
        for part in _OF_A_LAYER}
    model = Model(
        name=field("general.name", ""), shape=shape, layers=layers,
        embedding=embedding, output_norm=jnp.asarray(
            dense("output_norm.weight")),
        output=embedding if tied else jnp.asarray(dense("output.weight")))
    if tensors:
        raise Unsupported(f"tensor {sorted(tensors)[0]} has no place in a "
                          "llama decoder without biases and experts")
    return model


def times(x, matrix):
    """x [..., in] and a matrix [out, in] -> [..., out]."""
    return jnp.einsum("...i,oi->...o", x, matrix, precision=HIGHEST)


def norm(x, weight, eps: float):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(shape: Shape, x, positions):
    """x [..., T, heads, d], positions [..., T]: turns the pairs (2i, 2i+1)."""
    # numpy has the powers in f64, as the server does.
    frequencies = jnp.asarray(
        shape.rope_base ** (-np.arange(0, shape.rotary_dim, 2)
                            / max(shape.rotary_dim, 1)), jnp.float32)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    c, s = jnp.cos(angles), jnp.sin(angles)
    turned, rest = x[..., :shape.rotary_dim], x[..., shape.rotary_dim:]
    a, b = turned[..., 0::2], turned[..., 1::2]
    pairs = jnp.stack([a * c - b * s, a * s + b * c], -1)
    return jnp.concatenate([pairs.reshape(turned.shape), rest], -1)


def block(shape: Shape, w: dict, x, positions, attend):
    """One layer. x [..., T, hidden]; `attend` takes q [..., T, G, R, d] (over
    sqrt(d)), k and v [..., T, G, d] and gives the attention's output, shaped
    like q, and anything else. -> (x after the layer, anything else)."""
    h = norm(x, w["attn_norm"], shape.norm_eps)

    def heads(name, count):
        y = times(h, w[name])
        return y.reshape(*y.shape[:-1], count, shape.head_dim)
    q = rotate(shape, heads("attn_q", shape.heads), positions)
    k = rotate(shape, heads("attn_k", shape.kv_heads), positions)
    v = heads("attn_v", shape.kv_heads)
    q = q.reshape(*q.shape[:-2], shape.kv_heads, shape.group, shape.head_dim)
    out, extra = attend(q / np.sqrt(shape.head_dim).astype(np.float32), k, v)
    x = x + times(out.reshape(*x.shape[:-1], -1), w["attn_output"])
    h = norm(x, w["ffn_norm"], shape.norm_eps)
    gate = jax.nn.silu(times(h, w["ffn_gate"])) * times(h, w["ffn_up"])
    return x + times(gate, w["ffn_down"]), extra


def log_likelihoods(model_parts, shape: Shape, x):
    """x [..., hidden] after the last layer -> [..., V] in nats."""
    output_norm, output = model_parts
    return jax.nn.log_softmax(
        times(norm(x, output_norm, shape.norm_eps), output), -1)


# Rows of a prompt whose attention is computed at once: bounds the memory.
_ROWS = 128


def _prompt_attention(q, k, v):
    """Causal; q [N, G, R, d], k and v [N, G, d], N a multiple of _ROWS."""
    keys = jnp.arange(k.shape[0])

    def rows(start):
        part = jax.lax.dynamic_slice_in_dim(q, start, _ROWS)
        logits = jnp.einsum("tgrd,ngd->grtn", part, k, precision=HIGHEST)
        seen = keys <= (start + jnp.arange(_ROWS))[:, None]
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), -1)
        return jnp.einsum("grtn,ngd->tgrd", weights, v, precision=HIGHEST)
    out = jax.lax.map(rows, jnp.arange(0, k.shape[0], _ROWS))
    return out.reshape(q.shape)


def _prompt_scores(q, k, n, rows: int):
    """[G, N]: what the last `rows` of n rows give each key, without noise."""
    first = jnp.maximum(n - rows, 0)
    row = first + jnp.arange(rows)
    part = jax.lax.dynamic_slice_in_dim(q, first, rows)
    logits = jnp.einsum("tgrd,ngd->grtn", part, k, precision=HIGHEST)
    seen = jnp.arange(k.shape[0]) <= row[:, None]
    weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), -1)
    return jnp.where(row[:, None] < n, weights, 0.0).sum((1, 2))


@functools.partial(jax.jit, static_argnames=("shape", "score_queries"))
def _prompt(layers, embedding, ids, n, *, shape: Shape, score_queries: int):
    rows = min(score_queries or ids.shape[0], ids.shape[0])
    positions = jnp.arange(ids.shape[0])

    def layer(x, w):
        def attend(q, k, v):
            return (_prompt_attention(q, k, v),
                    (k, v, _prompt_scores(q, k, n, rows)))
        return block(shape, w, x, positions, attend)
    return jax.lax.scan(layer, embedding[ids], layers)[1]


def padded(tokens: int) -> int:
    """The length that a prompt is padded to: few lengths, few compilations."""
    step = max(_ROWS, 1 << max((tokens - 1).bit_length() - 2, 0))
    return -(-tokens // step) * step


def prompt(model: Model, ids, score_queries: int):
    """A prompt's keys (rotated) and values [L, N, G, d], and its scores
    [L, G, N] before anything is evicted; N = padded(len(ids)). The last
    `score_queries` rows score, all where 0; tau 1."""
    filled = np.zeros(padded(len(ids)), np.int32)
    filled[:len(ids)] = ids
    return _prompt(model.layers, model.embedding, filled, len(ids),
                   shape=model.shape, score_queries=score_queries)
