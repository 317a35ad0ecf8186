#!/usr/bin/env python3
"""Writes dequant.json: blocks of each GGML type and what they dequantise to.

    python make_dequant.py > dequant.json

Needs: numpy, gguf (the reference: gguf.quants.dequantize). Blocks are random
bytes with sane scales: halfs of both signs, subnormal and zero ones too.
"src" is the blocks' bytes, "want" little-endian f32, both in hex.
"""
import json
import sys

import gguf
import numpy as np

SEED = 20240901
BLOCKS = 4
# Byte offsets of the halfs in a block; None: the element is the whole block.
HALFS = {
    "F32": None, "F16": None, "BF16": None, "Q4_0": [0], "Q4_1": [0, 2],
    "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
    "Q6_K": [208],
}
SCALES = np.array([0.0123, -1.75, 3e-6, 0.0, 417.0, -2.5e-4], np.float16)


def blocks(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if HALFS[name] is None:
        values = np.array([0.0, -0.0, 1.0, -3.140625, 6e-8, -5.9e-5, 65504.0,
                           0.1, *rng.standard_normal(8)], np.float32)
        return values, gguf.quants.quantize(values, kind).view(np.uint8)
    src = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for block in range(BLOCKS):
        for i, at in enumerate(HALFS[name]):
            scale = SCALES[(block + 3 * i) % len(SCALES)]
            src[block, at:at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return None, src


def main():
    rng = np.random.default_rng(SEED)
    cases = []
    for name in HALFS:
        kind = gguf.GGMLQuantizationType[name]
        _, src = blocks(name, rng)
        want = gguf.quants.dequantize(src.copy(), kind) if HALFS[name] else (
            gguf.quants.dequantize(
                src.view({"F32": np.float32, "F16": np.float16,
                          "BF16": np.uint8}[name]), kind))
        cases.append({"type": name, "src": src.tobytes().hex(),
                      "want": want.astype("<f4").tobytes().hex()})
    json.dump({"made_by": "make_dequant.py", "numpy": np.__version__,
               "seed": SEED, "cases": cases}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
