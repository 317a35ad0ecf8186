#!/usr/bin/env python3
"""Makes cases.json: what the numpy oracle says of tiny models, prompts and cache policies.

    cmake --preset dev && ninja -C build/dev make_tiny_model
    python tests/golden/make_golden.py --make-model build/dev/bin/make_tiny_model

Needs numpy and gguf. The oracle (tests/oracle/keyformer_oracle.py) runs in float64; the engine runs in float32, so a case
whose outcome hangs on rounding is rejected: a relative gap below 1e-5 at the cut of any selection, eviction or choice of Quest
pages, a margin below 1e-3 between the two largest logits, or one below 2e-4 between neighbours among a beam step's best
candidates. The program prints how many were rejected, and fails unless
 - enough cases of every kind (WANTED) are accepted, and in three quarters of all at least a third of the tokens seen are
   evicted and 32 or more decode steps evict;
 - every known trap of the paper's released code, put into the oracle, changes at least five cases (it is tried until 20).

    python tests/golden/make_golden.py --make-model ... --fuzz SEED --candidates 500 --longest 120 --out fuzz.json
    KF_GOLDEN_FILE=fuzz.json build/dev/bin/golden_test --gtest_filter='*Together:*Alone'

compares the engine with other draws, without those demands.
"""
import argparse
import collections
import hashlib
import importlib.metadata
import json
import math
import pathlib
import platform
import random
import subprocess
import sys
import tempfile

import gguf
import numpy as np

from golden_draw import CONTEXT, EOS, LONGEST, SHAPES, TIED, draw_case, draw_forced, sizes_are_legal
from golden_recorder import TRAPS, oracle, run

HERE = pathlib.Path(__file__).resolve().parent
MIN_SCORE_GAP = 1e-5
MIN_LOGIT_MARGIN = 1e-3
MIN_BEAM_MARGIN = 2e-4
MIN_TRAPPED = 5
MAX_TRAPPED = 20  # then it is known to show
# Fewest accepted cases with an option's value; "beams 3": of that width.
WANTED = {
    "cases": 150, "full": 6, "window": 8, "h2o": 15, "keyformer": 60, "quest": 8, "scope layer": 12, "scope model": 12,
    "positions cache": 10, "score_norm age": 10, "score_queries": 8, "decode_scores": 6, "noise gaussian": 5, "noise constant": 3,
    "noise none": 3, "resample once": 5, "basis total": 8, "layer_weights": 8, "full_layers": 8, "min_tokens": 5, "window 0": 10,
    "recent 1.0": 3, "stream": 8, "forced": 8, "beams": 20, "beams full": 4, "beams keyformer": 8, "beams layer": 2,
    "beams model": 2, "beams 1": 2, "beams 2": 3, "beams 3": 3, "beams 4": 3, "eos": 10, "beams eos": 5, "kv_heads 1": 20, "kv_heads 2": 20, "kv_heads 4": 20,
}


def features(case):
    """What WANTED counts."""
    policy = case["policy"]
    yield from ("cases", policy["kind"], f"kv_heads {SHAPES[case['model']][2]}")
    yield from (f for f in policy if f in ("score_queries", "decode_scores", "layer_weights", "full_layers", "min_tokens"))
    for field in ("scope", "positions", "score_norm", "noise", "resample", "basis"):
        if field in policy:
            yield f"{field} {policy[field]}"
    if policy.get("window") == 0:
        yield "window 0"
    if policy.get("recent") == 1.0:
        yield "recent 1.0"
    yield from (f for f in ("stream", "forced") if f in case)
    if "beam" in case:
        yield from ("beams", f"beams {policy['kind']}", f"beams {policy.get('scope', 'head')}", f"beams {case['beam']['width']}")
    lengths = [len(b["tokens"]) for b in case["want"].get("beams", [case["want"]])]
    if min(lengths) < case["max_new"]:
        yield "eos"
        if "beam" in case:
            yield "beams eos"


def outcome_differs(a, b):
    """True if two results differ by more than the test allows."""
    if any(a.get(f) != b.get(f) for f in ("tokens", "kept_after_prompt", "kept_at_end")):
        return True
    if "beams" in a:
        return [x["tokens"] for x in a["beams"]] != [x["tokens"] for x in b["beams"]]
    return max(abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"])) > 1e-4


def evicts_much(session):
    seen = session.next_pos
    held = sum(len(cache.pos[0]) for cache in session.cache) / len(session.cache)
    return seen - held >= seen / 3 and session.evicting_steps >= 32


def ranges(positions):
    """[0, 1, 2, 3, 7] -> "0-3,7"."""
    parts = []
    for p in positions:
        if parts and parts[-1][1] == p - 1:
            parts[-1][1] = p
        else:
            parts.append([p, p])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def compact(case, result):
    """The result as the file holds it; where everything is kept, nothing is said of it."""
    everything = case["policy"]["kind"] in ("full", "quest")
    for field in ("kept_after_prompt", "kept_at_end"):
        result[field] = [] if everything else [[ranges(head) for head in layer] for layer in result[field]]
    return result


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def make_models(program, folder):
    specs, models = [], []
    for i, (layers, heads, kv_heads, head_dim, ffn) in enumerate(SHAPES):
        spec = {"seed": 101 + i, "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn,
                "context": CONTEXT, "tied": i == TIED, "eos": EOS.get(i, 257)}
        path = f"{folder}/{i}.gguf"
        flags = [f"--{name}={str(value).lower()}" for name, value in spec.items()]
        subprocess.run([program, *flags, path], check=True)
        data = pathlib.Path(path).read_bytes()
        specs.append({**spec, "sha256": hashlib.sha256(data).hexdigest(), "fnv1a": fnv1a(data)})
        models.append(oracle.Llama(path, np.float64))
    return specs, models


def rejection(session):
    """Why rounding might decide, or None; and how near the decisions were."""
    near = {"score_gap": session.min_gap, "logit_margin": session.min_margin, "beam_margin": session.min_beam_margin}
    least = {"score_gap": MIN_SCORE_GAP, "logit_margin": MIN_LOGIT_MARGIN, "beam_margin": MIN_BEAM_MARGIN}
    return next((name for name in near if near[name] < least[name]), None), near


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--make-model", required=True, help="the program make_tiny_model")
    ap.add_argument("--seed", type=int, default=20240315)
    ap.add_argument("--candidates", type=int, default=240)
    ap.add_argument("--out", default=str(HERE / "cases.json"))
    ap.add_argument("--fuzz", type=int, metavar="SEED", help="other draws, of which nothing is demanded; needs --out")
    ap.add_argument("--longest", type=int, default=LONGEST, help="prompt tokens")
    a = ap.parse_args()
    fuzz = a.fuzz is not None
    if fuzz and a.out == ap.get_default("out"):
        ap.error("--fuzz needs --out")
    seed = a.fuzz if fuzz else a.seed
    accepted, rejected, much = [], collections.Counter(), 0
    nearest = collections.defaultdict(lambda: math.inf)  # of the accepted
    traps, counts = dict.fromkeys(TRAPS, 0), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        specs, models = make_models(a.make_model, folder)
    for index in range(a.candidates):
        rng = random.Random(f"{seed}/{index}")
        case = draw_case(rng, index if not fuzz else index + 1000, a.longest)
        if not sizes_are_legal(case):
            rejected["sizes"] += 1
            continue
        model = models[case["model"]]
        if case.pop("is_forced"):
            case["forced"] = draw_forced(rng, model, case)
        result, session = run(model, case)
        reason, near = rejection(session)
        if reason is not None:
            rejected[reason] += 1
            continue
        for name, value in near.items():
            nearest[name] = min(nearest[name], float(value))
        much += evicts_much(session)
        if not fuzz and case["policy"]["kind"] in ("h2o", "keyformer"):
            for trap in (t for t in TRAPS if traps[t] < MAX_TRAPPED):
                traps[trap] += outcome_differs(result, run(model, case, trap)[0])
        case["want"] = compact(case, result)
        counts.update(features(case))
        accepted.append(case)
    report = {"rejected": rejected, "nearest": nearest, "evicting_much": much, "changed_by_traps": traps, "counts": counts}
    print(json.dumps(report, indent=1))
    missing = {name: least for name, least in WANTED.items() if counts[name] < least}
    if not fuzz and (missing or 4 * much < 3 * len(accepted) or min(traps.values()) < MIN_TRAPPED):
        sys.exit(f"make_golden: too few cases of some kind: {missing}, see above")
    header = {
        "what": "outcomes of tests/oracle/keyformer_oracle.py in float64; made by tests/golden/make_golden.py",
        "command": f"python tests/golden/make_golden.py --make-model make_tiny_model --seed {seed} --candidates {a.candidates}",
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "gguf": importlib.metadata.version("gguf")},
        **report,
    }
    with open(a.out, "w", encoding="ascii") as out:
        dump = lambda value: json.dumps(value, separators=(",", ":"))
        out.write('{"header":' + json.dumps(header, indent=1) + ',\n"models":[\n' + ",\n".join(map(dump, specs)))
        out.write('\n],\n"cases":[\n' + ",\n".join(map(dump, accepted)) + "\n]}\n")


if __name__ == "__main__":
    main()
