"""python3 -m tests.quality.dtypes: what a weight format (--dtype) changes.

Scores the same continuations under each format, nothing evicted, and compares
with the first one: the likelihood, each token's log probability, and the most
probable token.
"""

import argparse
import concurrent.futures
import pathlib
import statistics

from . import intervals, server_process, table, texts, wire
from .__main__ import CACHE, ROOT

PROMPT_TOKENS = 128


def arguments():
    parser = argparse.ArgumentParser(prog="python3 -m tests.quality.dtypes",
                                     description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=CACHE /
                        "keyformer/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--server", type=pathlib.Path, default=ROOT /
                        "build/release/bin/keyformer-server")
    parser.add_argument("--dtypes", default="f32,bf16,q8,q4",
                        help="separated by commas (%(default)s)")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=384,
                        help="scored of each window")
    return parser.parse_args()


def windows(client, chosen) -> list:
    """Stretches of different texts: (prompt, continuation)."""
    need = PROMPT_TOKENS + chosen.tokens
    found = []
    for _, text in texts.Texts(texts.BUNDLED).long_texts():
        ids = client.tokenize(text[:60000])
        if len(ids) >= need and len(found) < chosen.windows:
            found.append((ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:need]))
    return found


def score(chosen, dtype: str) -> list:
    """Of each window its forced tokens' log probabilities and the most
    probable ones."""
    flags = ["--dtype", dtype, "--cache_dtype", "f32"]
    with server_process.ServerProcess(chosen.server, chosen.model,
                                      flags) as address:
        client = wire.Client(address)
        client.wait_ready(120)

        def ask(window):
            prompt, forced = window
            answer = client.generate({
                "token_ids": {"ids": prompt}, "forced_tokens": {"ids": forced},
                "cache": {"policy": "CACHE_POLICY_FULL"},
                "output": {"top_logprobs": 1}})
            return answer["sequences"][0]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(ask, windows(client, chosen)))


def compare(answers: list, base: list) -> list:
    """Cells of a row: likelihood, its difference, errors, agreement."""
    nlls = [-statistics.fmean(a["logprobs"]) for a in answers]
    differences = [nll + statistics.fmean(b["logprobs"])
                   for nll, b in zip(nlls, base)]
    errors = sorted(abs(x - y) for a, b in zip(answers, base)
                    for x, y in zip(a["logprobs"], b["logprobs"]))
    same = statistics.fmean(x == y for a, b in zip(answers, base)
                            for x, y in zip(a["best"], b["best"]))
    return [f"{statistics.fmean(nlls):.4f}",
            table.signed(statistics.fmean(differences), 4),
            table.interval(*intervals.bootstrap_mean(differences),
                           lambda x: table.signed(x, 4)),
            f"{statistics.fmean(errors):.4f}",
            f"{errors[int(0.99 * (len(errors) - 1))]:.3f}",
            table.percent(same, 2)]


def main() -> None:
    chosen = arguments()
    dtypes = chosen.dtypes.split(",")
    answers = {dtype: score(chosen, dtype) for dtype in dtypes}
    base = answers[dtypes[0]]
    print(table.Table(
        f"{chosen.model.name}: {len(base)} windows of {chosen.tokens} tokens "
        f"against {dtypes[0]}",
        ["--dtype", "NLL", "difference", "95 %", "mean error of a log "
         "probability", "99th percentile", "same top-1"],
        [[dtype, *compare(answers[dtype], base)]
         for dtype in dtypes]).markdown())


if __name__ == "__main__":
    main()
