"""python3 -m tools.calibrate.descend: finds a layer profile along slopes."""

import argparse
import datetime
import pathlib
import shlex
import sys
import time

try:
    import gguf  # noqa: F401 (named here so that its absence is told)
    import jax  # noqa: F401
    import numpy as np
except ImportError as missing:
    sys.exit(f"descend: {missing}. It needs packages of its own: "
             "python3 -m venv VENV && "
             "VENV/bin/pip install -r tools/calibrate/descend/requirements.txt")

from . import batches, model as llama, probes, profile_file, shares

GIB = 1 << 30


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.calibrate.descend",
        description="Finds how a model's cache budget is best spread over its "
        "layers, by descent along the slopes of what is lost, and writes it as "
        "a layer profile (docs/calibration.md).")
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True, help="GGUF file, llama")
    add("--probes", type=pathlib.Path, required=True,
        help="file that keyformer-calibrate --probes_out wrote")
    add("--out", type=pathlib.Path, required=True, help="profile file to write")
    add("--name", default="calibrated", help="of the profile (%(default)s)")
    add("--total", type=float, default=0.5,
        help="budget of all layers, share of the prompt (%(default)s)")
    add("--floor", type=float, default=0.1,
        help="what each layer keeps at least (%(default)s)")
    add("--recent_ratio", type=float, default=0.3,
        help="as requests will have it (%(default)s, the server's)")
    add("--score_queries", type=int, default=256,
        help="as requests will have it, 0: all (%(default)s, the server's)")
    add("--text_weight", type=float, default=5.0,
        help="of the texts' divergence beside the facts' NLL (%(default)s)")
    add("--steps", type=int, default=24, help="(%(default)s)")
    add("--start", help="profile in --out to start from; all layers alike")
    add("--memory_gib", type=float, default=4.0,
        help="refuse probes whose caches take more (%(default)s)")
    return checked(parser, parser.parse_args(argv))


def checked(parser, args):
    rules = (
        (0 < args.total < 1, "--total: want a number above 0 and below 1"),
        (0 < args.floor <= args.total, "--floor: want above 0, at most --total"),
        (0 <= args.recent_ratio <= 1, "--recent_ratio: want 0 to 1"),
        (args.score_queries >= 0, "--score_queries: want 0 or more"),
        (args.text_weight >= 0, "--text_weight: want 0 or more"),
        (args.steps >= 1, "--steps: want 1 or more"),
    )
    for holds, rule in rules:
        if not holds:
            parser.error(rule)
    return args


class Progress:
    """Lines on standard error."""

    def __init__(self):
        self._begin = time.monotonic()

    def __call__(self, line: str) -> None:
        spent = time.monotonic() - self._begin
        print(f"[{spent:5.0f} s] {line}", file=sys.stderr, flush=True)

    def prompts(self, total: int):
        """-> what hears of each prompt's tokens and shows every tenth part."""
        seen, shown = 0, 0

        def done(tokens):
            nonlocal seen, shown
            seen += tokens
            if seen * 10 // total > shown:
                shown = seen * 10 // total
                self(f"prompts: {seen} of {total} tokens")
        return done


def text(losses: batches.Losses) -> str:
    return (f"facts' NLL {losses.fact_nll:.3f}, texts' {losses.text_nll:.4f}, "
            f"divergence {losses.text_divergence:.4f}")


def between(first: float, last: float, part: float) -> float:
    """Geometric: `first` at 0, `last` at 1."""
    return first * (last / first) ** part


def descend(args, model, computed, start, show):
    """(shares [L], [one dict a step])."""
    path = shares.Descent(start, args.total, args.floor)
    trace, late = [], []
    for number in range(args.steps):
        part = number / max(args.steps - 1, 1)
        # A wide cut first, so that layers far from where their keys lie have
        # slopes too; in the end one that is nearly the real one.
        width = between(0.1, 0.03, part)
        losses, slopes = batches.slopes(model, computed, path.shares, width,
                                        args.text_weight)
        if not np.isfinite(slopes).all():
            raise ValueError("slopes that are no numbers: what the model "
                             "computes is beyond f32")
        trace.append({"fact_nll": round(losses.fact_nll, 4),
                      "text_divergence": round(losses.text_divergence, 4)})
        show(f"step {number + 1} of {args.steps}, soft: {text(losses)}")
        path.step(slopes, between(0.12, 0.02, part))
        late.append(path.shares)
    # The last steps go to and fro about where they lead.
    return np.mean(late[-max(args.steps // 4, 1):], 0).tolist(), trace


def evidence(args, found, measured, trace) -> dict:
    def of(losses):
        return {"fact_nll": round(losses.fact_nll, 4),
                "text_nll": round(losses.text_nll, 4),
                "text_divergence": round(losses.text_divergence, 4)}

    def lengths(kind):
        sizes = [len(probe.prompt) for probe in found.of(kind)]
        return {"count": len(sizes), "tokens": [min(sizes), max(sizes)]}
    return {
        "model": found.model or args.model.name,
        "made_by": "python3 -m tools.calibrate.descend "
                   + shlex.join(args.given),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "texts": found.texts,
        "facts": lengths("fact"),
        "windows": lengths("text"),
        "ratio": args.total,
        "floor": args.floor,
        "recent_ratio": args.recent_ratio,
        "score_queries": args.score_queries,
        "noise": "none",
        "text_weight": args.text_weight,
        **{name: of(losses) for name, losses in measured.items()},
        "steps": trace,
    }


def start_of(args, layers: int):
    if args.start is None:
        return [args.total] * layers
    profiles = profile_file.read(args.out)["profiles"]
    weights = profiles.get(args.start, {}).get("weights", [])
    if len(weights) != layers:
        raise ValueError(f"{args.out}: no profile {args.start} of {layers} "
                         "layers to start from")
    return [weight * args.total for weight in weights]


def run(args) -> None:
    show = Progress()
    profile_file.read(args.out)  # before the work, not after it
    model = llama.load(args.model)
    found = probes.load(args.probes, model.shape.vocabulary)
    start = start_of(args, model.shape.layers)
    needed = batches.cache_bytes(model.shape, found.probes)
    if needed > args.memory_gib * GIB:
        raise ValueError(
            f"the probes' keys and values take {needed / GIB:.1f} GiB, "
            f"--memory_gib is {args.memory_gib:g}: fewer or shorter probes")
    total = sum(len(probe.prompt) for probe in found.probes)
    show(f"{len(found.probes)} prompts, {total} tokens, {model.shape.layers} "
         f"layers; {needed / GIB:.1f} GiB of keys and values")
    computed = batches.compute(model, found.probes, args.score_queries,
                               args.recent_ratio, show.prompts(total))
    measured = {}

    def measure(name, weights):
        measured[name] = batches.measure(model, computed, weights, args.total,
                                         args.recent_ratio)
        show(f"{name}: {text(measured[name])}")
        return measured[name]
    measure("full", None)
    measure("uniform", [1.0] * model.shape.layers)
    best, trace = descend(args, model, computed, start, show)
    weights = shares.rounded_weights(best)
    after = measure("this_profile", weights)
    if after.total(args.text_weight) >= measured["uniform"].total(
            args.text_weight):
        raise ValueError("nothing found that loses less than all layers alike; "
                         "nothing written")
    profile_file.write(args.out, args.name, weights,
                       evidence(args, found, measured, trace))
    show(f'"{args.name}" is in {args.out}')


def main(argv) -> int:
    args = arguments(argv)
    args.given = argv
    try:
        run(args)
    except llama.Unsupported as error:
        print(f"descend: {args.model}: not supported: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"descend: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
