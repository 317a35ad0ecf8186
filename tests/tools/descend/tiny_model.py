"""Writes tiny random GGUF models. Needs gguf and numpy."""

import gguf
import numpy as np

VOCABULARY = 61


def write(path, *, seed=1, layers=3, heads=8, kv_heads=2, head_dim=16,
          rotary_dim=None, tied=False, architecture="llama", extra=()):
    """Scaled so that attention is uneven. `extra`: (key, value) of strings, or
    of integers, to add."""
    draw = np.random.default_rng(seed)
    hidden, ffn = 48, 96
    w = gguf.GGUFWriter(str(path), architecture)
    w.add_name(f"tiny-{seed}")
    w.add_context_length(512)
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(rotary_dim or head_dim)
    for key, value in extra:
        add = w.add_string if isinstance(value, str) else w.add_uint32
        add(key, value)

    def matrix(name, out, into, gain=1.0):
        values = draw.standard_normal((out, into)) * gain / np.sqrt(into)
        w.add_tensor(name, values.astype(np.float32))

    def norm(name):
        w.add_tensor(name, (1 + 0.1 * draw.standard_normal(hidden)).astype(
            np.float32))
    matrix("token_embd.weight", VOCABULARY, hidden, np.sqrt(hidden))
    for layer in range(layers):
        b = f"blk.{layer}."
        norm(b + "attn_norm.weight")
        matrix(b + "attn_q.weight", heads * head_dim, hidden, 1.6)
        matrix(b + "attn_k.weight", kv_heads * head_dim, hidden, 1.6)
        matrix(b + "attn_v.weight", kv_heads * head_dim, hidden)
        matrix(b + "attn_output.weight", hidden, heads * head_dim)
        norm(b + "ffn_norm.weight")
        matrix(b + "ffn_gate.weight", ffn, hidden)
        matrix(b + "ffn_up.weight", ffn, hidden)
        matrix(b + "ffn_down.weight", hidden, ffn)
    norm("output_norm.weight")
    if not tied:
        matrix("output.weight", VOCABULARY, hidden, 3.0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
