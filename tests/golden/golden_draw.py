"""Candidates for cases.json, drawn over the whole option space of docs/keyformer.md."""
from golden_recorder import Recorder, _Observed, oracle

# layers, heads, kv_heads, head_dim, ffn: 1 to 4 key/value groups, several head sizes.
SHAPES = [(2, 4, 4, 16, 128), (3, 8, 2, 16, 128), (2, 6, 3, 32, 192), (2, 8, 1, 16, 128), (4, 2, 1, 64, 128), (3, 4, 2, 32, 160)]
CONTEXT = 1024
TIED = 5  # this shape's output is its embedding
EOS = {0: 184, 1: 95, 2: 165, 3: 155}  # of these shapes: tokens that they like, so that sequences end

# Prompt lengths that come first: 1, and the borders of pages, row tiles and key tiles.
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 127, 128, 150, 200, 255, 257, 300, 384, 449, 511, 512, 513, 600]
LONGEST = 600

# What is drawn in turn; a name with + is a beam search.
KINDS = ("keyformer keyformer h2o keyformer+ keyformer window keyformer quest keyformer h2o keyformer "
         "full+ keyformer keyformer+ h2o keyformer window+ keyformer quest keyformer keyformer h2o+ window keyformer "
         "keyformer full h2o keyformer keyformer keyformer+").split()
SCORED = ("h2o", "keyformer")


def draw_budget(rng, policy, n, max_new):
    if rng.random() < 0.55:
        policy["ratio"] = rng.choice([0.2, 0.25, 0.4, 0.5, 0.5, 0.6])
        if rng.random() < 0.25:
            policy.update(basis="total", ratio=rng.choice([0.2, 0.3, 0.4, 0.5]))
        if n < 8 or rng.random() < 0.1:
            policy["min_tokens"] = rng.randint(2, 12)
    else:
        policy["budget"] = rng.randint(1, max(4, (n + max_new) // 2))


def draw_recent(rng, policy):
    draw = rng.random()
    if draw < 0.24:
        policy["window"] = 0
    elif draw < 0.30:
        policy["recent"] = 1.0  # w = k: a pure window
    elif draw < 0.40:
        policy["recent"] = rng.choice([0.1, 0.5, 0.75])
    elif draw < 0.50 and "budget" in policy:
        policy["window"] = rng.randint(0, policy["budget"])


def draw_layer_weights(rng, layers):
    weights = [rng.choice([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0]) for _ in range(layers - 1)] + [1.0]
    return [weight * layers / sum(weights) for weight in weights]


def draw_scoring(rng, policy, beams):
    """Options that policies with scores read."""
    policy["scope"] = rng.choice(["head", "layer", "model"] if beams else ["head", "head", "head", "layer", "model"])
    if rng.random() < 0.12:
        policy["decode_scores"] = False
    if rng.random() < 0.15:
        policy["score_queries"] = rng.choice([1, 7, 32, 1000])
    if rng.random() < 0.22:
        policy["score_norm"] = "age"


def draw_noise(rng, policy):
    """Options that Keyformer alone reads."""
    policy["seed"] = rng.getrandbits(rng.choice([8, 32, 64]))
    if rng.random() < 0.25:
        policy.update(tau_init=rng.choice([0.5, 1.0, 1.5]), tau_end=rng.choice([1.0, 3.0]))
    if rng.random() < 0.3:
        policy["noise"] = rng.choice(["gaussian", "constant", "none"])
    if rng.random() < 0.15:
        policy["resample"] = "once"


def draw_policy(rng, kind, n, max_new, layers, beams):
    policy = {"kind": kind}
    if kind == "full":
        return policy
    draw_budget(rng, policy, n, max_new)
    if kind == "quest":
        policy["full_layers"] = rng.choice([0, 0, 1, 1, 2])
        return policy
    if kind == "window":
        policy["sinks"] = rng.choice([0, 1, 4, 4, 20])
    if kind in SCORED:
        draw_recent(rng, policy)
        draw_scoring(rng, policy, beams)
    if kind == "keyformer":
        draw_noise(rng, policy)
    if rng.random() < 0.18:
        policy["positions"] = "cache"
    if policy.get("scope") != "model" and rng.random() < 0.15:
        policy["layer_weights"] = draw_layer_weights(rng, layers)
    return policy


def draw_case(rng, index, longest=LONGEST):
    """The index'th candidate, of at most `longest` prompt tokens."""
    kind = KINDS[index % len(KINDS)]
    beams = kind.endswith("+")
    lengths = [n for n in LENGTHS if n <= longest]
    n = lengths[index] if index < len(lengths) else rng.randint(4, rng.choice([min(200, longest), longest]))
    # Coprime periods, so that kinds, lengths and models meet in all ways.
    shape = (index + index // len(KINDS)) % len(SHAPES)
    max_new = rng.randint(36, 60) if n <= 200 else rng.randint(34, 44)
    case = {
        "model": shape,
        "prompt": [rng.randrange(256) for _ in range(n)],
        "policy": draw_policy(rng, kind.rstrip("+"), n, max_new, SHAPES[shape][0], beams),
        "max_new": max_new,
        "ignore_eos": rng.random() < (0.3 if beams else 0.88),
    }
    if beams:
        case["beam"] = {"width": rng.randint(1, 4), "length_penalty": rng.choice([0.0, 0.5, 1.0, 1.0, 2.0]),
                        "early_stopping": rng.random() < 0.3}
    elif kind == "keyformer" and rng.random() < 0.25:
        case["stream"] = rng.choice([1, 2, 3, 2**32 - 1])
    case["is_forced"] = not beams and rng.random() < 0.1
    return case


def draw_forced(rng, model, case):
    """Tokens that greedy decoding would not take, and that are no absurd ones: a draw at temperature 2."""
    _Observed.trap = None
    session = Recorder(model, oracle.Policy(**case["policy"]), case["max_new"])
    logits, forced = session.prefill(case["prompt"]), []
    while len(forced) < case["max_new"]:
        p = oracle.softmax(logits / 2)
        forced.append(rng.choices(range(len(p)), p)[0])
        logits = session.decode(forced[-1])
    return forced


def sizes_are_legal(case):
    try:
        oracle.Policy(**case["policy"]).layer_sizes(SHAPES[case["model"]][0], len(case["prompt"]), case["max_new"])
    except ValueError:
        return False
    return True
