#!/usr/bin/env python3
"""Makes cases.json: what the numpy oracle says of tiny models, prompts and cache policies.

    cmake --preset dev && ninja -C build/dev make_tiny_model
    python tests/golden/make_golden.py --make-model build/dev/bin/make_tiny_model

Needs numpy and gguf. The oracle (tests/oracle/keyformer_oracle.py) runs in float64; the engine runs in float32, so a case
whose outcome hangs on rounding is rejected: a score gap at any selection or eviction below 1e-5 relative, or a margin
between the two largest logits below 1e-3. The program prints how many were rejected, and fails unless
 - at least 40 cases are accepted, and in three quarters of them at least a third of the tokens seen are evicted and 32 or
   more decode steps evict;
 - every known trap of the paper's released code, put into the oracle, changes at least five cases.
"""
import argparse
import hashlib
import importlib.metadata
import importlib.util
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

HERE = pathlib.Path(__file__).resolve().parent
MIN_SCORE_GAP = 1e-5
MIN_LOGIT_MARGIN = 1e-3
MIN_TRAPPED = 5

# layers, heads, kv_heads, head_dim, ffn: with and without groups, several head sizes.
SHAPES = [(2, 4, 4, 16, 128), (3, 8, 2, 16, 128), (2, 6, 3, 32, 192), (2, 8, 1, 16, 128), (4, 2, 1, 64, 128), (3, 4, 2, 32, 160)]
CONTEXT = 512
TIED = 5  # this shape's output is its embedding


def load_oracle():
    path = HERE.parent / "oracle" / "keyformer_oracle.py"
    spec = importlib.util.spec_from_file_location("keyformer_oracle", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = load_oracle()


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


class Recorder(oracle.Session):
    """A session that notes how near each decision was, and can be given one trap of the released code."""

    trap = None  # None | drop_leaving | frozen | recent_zero_off | bf16_scores
    last = None  # the newest session

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.min_gap, self.min_margin, self.evicting_steps = np.inf, np.inf, 0
        Recorder.last = self

    def _note_gap(self, score, k, w):
        older, chosen = len(score) - w, k - w
        if len(score) <= k or chosen == 0:
            return
        order = np.sort(score[:older])[::-1]
        kept, dropped = order[chosen - 1], order[chosen]
        if kept != 0.0:  # two exact zeros (decode_scores off) tie everywhere
            self.min_gap = min(self.min_gap, (kept - dropped) / kept)

    def _evict(self, caches, whole_model):
        if whole_model or self.p.kind == "full":
            return
        for cache in caches:
            k, w = self.layer_k_w[cache.layer]
            for g in range(self.m.kv_heads):
                if self.trap == "bf16_scores":
                    cache.score[g] = to_bf16(cache.score[g])
                score = cache.score[g].copy()
                self._note_gap(score, k, w)
                if len(score) > k:
                    leaving = len(score) - w - 1
                    if self.trap == "recent_zero_off" and w == 0:
                        continue
                    if self.trap == "drop_leaving" or (self.trap == "frozen" and self.step):
                        score[leaving] = -np.inf
                cache.keep(g, oracle.select(cache.pos[g], score, k, w))

    def _note_margin(self, logits):
        first, second = np.sort(logits)[-1], np.sort(logits)[-2]
        self.min_margin = min(self.min_margin, first - second)
        return logits

    def prefill(self, ids):
        return self._note_margin(super().prefill(ids))

    def decode(self, token):
        k, held = self.layer_k_w[0][0], len(self.cache[0].pos[0])
        self.evicting_steps += self.p.kind != "full" and held + 1 > k
        return self._note_margin(super().decode(token))


def run(model, case, trap=None):
    """-> (result of the oracle, the session)."""
    Recorder.trap = trap
    oracle.Session = Recorder
    policy = oracle.Policy(**case["policy"])
    result = oracle.generate(model, policy, case["prompt"], case["max_new"], case.get("forced"), case["ignore_eos"])
    del result["scores_at_end"]
    return result, Recorder.last


def draw_case(rng, index):
    """One candidate. Prompt lengths cover 1 to 300 and the borders of pages and row tiles."""
    n = [1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 128, 150, 200, 257, 300][index % 19]
    if index >= 38:
        n = rng.randint(4, 300)
    max_new = rng.randint(36, 64) if n <= 200 else rng.randint(34, 44)
    policy = {"kind": "keyformer", "seed": rng.getrandbits(rng.choice([8, 32, 64]))}
    shape = rng.random()
    if shape < 0.55:
        policy["ratio"] = rng.choice([0.2, 0.25, 0.4, 0.5, 0.5, 0.6])
        if rng.random() < 0.25:
            policy.update(basis="total", ratio=rng.choice([0.2, 0.3, 0.4, 0.5]))
        if n < 8:
            policy["min_tokens"] = rng.randint(2, 12)
    else:
        policy["budget"] = rng.randint(1, max(4, (n + max_new) // 2))
    window = rng.random()
    if window < 0.24:
        policy["window"] = 0
    elif window < 0.30:
        policy["recent"] = 1.0  # w = k: a pure window
    elif window < 0.45:
        policy["recent"] = rng.choice([0.1, 0.5, 0.75])
    if rng.random() < 0.2:
        policy.update(tau_init=rng.choice([0.5, 1.0, 1.5]), tau_end=rng.choice([1.0, 3.0]))
    kind = rng.random()
    if kind < 0.06:
        policy["noise"] = "gaussian"
    elif kind < 0.10:
        policy["noise"] = "constant"
    elif kind < 0.14:
        policy["noise"] = "none"
    elif kind < 0.20:
        policy["resample"] = "once"
    if rng.random() < 0.10:
        policy["decode_scores"] = False
    if rng.random() < 0.12:
        policy["score_queries"] = rng.choice([1, 7, 32, 1000])
    if index % 16 == 7:
        policy = {"kind": "h2o", **{f: v for f, v in policy.items() if f in ("ratio", "budget", "basis", "min_tokens", "window", "recent")}}
    if index % 16 == 11:
        policy = {"kind": "full"}
    case = {
        "model": index % len(SHAPES),
        "prompt": [rng.randrange(256) for _ in range(n)],
        "policy": policy,
        "max_new": max_new,
        "ignore_eos": rng.random() < 0.9,
    }
    case["is_forced"] = index % 12 == 5
    return case


def draw_forced(rng, model, case):
    """Tokens that greedy decoding would not take, and that are no absurd ones: a draw at temperature 2."""
    Recorder.trap = None
    session = Recorder(model, oracle.Policy(**case["policy"]), case["max_new"])
    logits, forced = session.prefill(case["prompt"]), []
    while len(forced) < case["max_new"]:
        p = oracle.softmax(logits / 2)
        forced.append(rng.choices(range(len(p)), p)[0])
        logits = session.decode(forced[-1])
    return forced


def sizes_are_legal(case):
    try:
        oracle.Policy(**case["policy"]).sizes(len(case["prompt"]), case["max_new"])
    except ValueError:
        return False
    return True


def changed(case, result):
    """True if a result differs from the case's by more than the test allows."""
    if any(result[f] != case["want"][f] for f in ("tokens", "kept_after_prompt", "kept_at_end")):
        return True
    return max(abs(a - b) for a, b in zip(result["logprobs"], case["want"]["logprobs"])) > 1e-4


def evicts_much(case, session):
    seen = session.next_pos
    held = len(session.cache[0].pos[0])
    return seen - held >= seen / 3 and session.evicting_steps >= 32


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def make_models(program, folder):
    specs, models = [], []
    for i, (layers, heads, kv_heads, head_dim, ffn) in enumerate(SHAPES):
        spec = {"seed": 101 + i, "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn,
                "context": CONTEXT, "tied": i == TIED}
        path = f"{folder}/{i}.gguf"
        flags = [f"--{name}={str(value).lower()}" for name, value in spec.items()]
        subprocess.run([program, *flags, path], check=True)
        data = pathlib.Path(path).read_bytes()
        specs.append({**spec, "sha256": hashlib.sha256(data).hexdigest(), "fnv1a": fnv1a(data)})
        models.append(oracle.Llama(path, np.float64))
    return specs, models


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--make-model", required=True, help="the program make_tiny_model")
    ap.add_argument("--seed", type=int, default=20240315)
    ap.add_argument("--candidates", type=int, default=72)
    ap.add_argument("--out", default=str(HERE / "cases.json"))
    a = ap.parse_args()
    rng = random.Random(a.seed)
    accepted, rejected, much = [], {"score_gap": 0, "logit_margin": 0, "sizes": 0}, 0
    nearest = {"score_gap": math.inf, "logit_margin": math.inf}  # of the accepted
    traps = dict.fromkeys(("drop_leaving", "frozen", "recent_zero_off", "bf16_scores"), 0)
    with tempfile.TemporaryDirectory() as folder:
        specs, models = make_models(a.make_model, folder)
    for index in range(a.candidates):
        case = draw_case(rng, index)
        if not sizes_are_legal(case):
            rejected["sizes"] += 1
            continue
        model = models[case["model"]]
        if case.pop("is_forced"):
            case["forced"] = draw_forced(rng, model, case)
        result, session = run(model, case)
        if session.min_gap < MIN_SCORE_GAP:
            rejected["score_gap"] += 1
            continue
        if session.min_margin < MIN_LOGIT_MARGIN:
            rejected["logit_margin"] += 1
            continue
        if case["policy"]["kind"] == "full":  # everything is kept
            result.update(kept_after_prompt=[], kept_at_end=[])
        result["logprobs"] = [round(x, 7) for x in result["logprobs"]]
        case["want"] = result
        much += evicts_much(case, session)
        nearest["score_gap"] = min(nearest["score_gap"], float(session.min_gap))
        nearest["logit_margin"] = min(nearest["logit_margin"], float(session.min_margin))
        if case["policy"]["kind"] != "full":
            for trap in traps:
                traps[trap] += changed(case, run(model, case, trap)[0])
        accepted.append(case)
    print(f"accepted {len(accepted)}, rejected {rejected}, nearest {nearest}, evicting much {much}, changed by traps {traps}")
    if len(accepted) < 40 or 4 * much < 3 * len(accepted) or min(traps.values()) < MIN_TRAPPED:
        sys.exit("make_golden: too few cases of some kind: see above")
    header = {
        "what": "outcomes of tests/oracle/keyformer_oracle.py in float64; made by tests/golden/make_golden.py",
        "command": f"python tests/golden/make_golden.py --make-model make_tiny_model --seed {a.seed} --candidates {a.candidates}",
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "gguf": importlib.metadata.version("gguf")},
        "rejected": rejected,
        "nearest": nearest,
        "evicting_much": much,
        "changed_by_traps": traps,
    }
    with open(a.out, "w", encoding="ascii") as out:
        dump = lambda value: json.dumps(value, separators=(",", ":"))
        out.write('{"header":' + json.dumps(header, indent=1) + ',\n"models":[\n' + ",\n".join(map(dump, specs)))
        out.write('\n],\n"cases":[\n' + ",\n".join(map(dump, accepted)) + "\n]}\n")


if __name__ == "__main__":
    main()
