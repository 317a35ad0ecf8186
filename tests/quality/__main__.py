"""python3 -m tests.quality: measures what a cache budget costs in quality."""

import argparse
import json
import os
import pathlib
import sys
import time

from . import (ablations, choices, grid, long_output, needles, nll, report,
               runner, server_process, sizes, store, summaries, texts, wire)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME",
                                    pathlib.Path.home() / ".cache"))

# name -> (its jobs, its report); in the order they run and are printed.
TASKS = {
    "nll": (nll.jobs, nll.report),
    "needles": (needles.jobs, needles.report),
    "summaries": (lambda c: summaries.jobs(c) + summaries.beam_jobs(c),
                  summaries.report),
    "choices": (choices.jobs, choices.report),
    "long": (long_output.jobs, long_output.report),
    "ablations": (ablations.jobs, ablations.report),
}


def arguments():
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.quality",
        description="Measures what a cache budget costs in quality, over gRPC. "
        "A run that was stopped goes on where it ended.")
    parser.add_argument("--address", help="host:port of a running server; "
                        "without it one of the release build is started")
    parser.add_argument("--model", type=pathlib.Path, default=CACHE /
                        "keyformer/SmolLM2-135M-Instruct.Q4_1.gguf",
                        help="GGUF file for the started server")
    parser.add_argument("--server", type=pathlib.Path, default=ROOT /
                        "build/release/bin/keyformer-server",
                        help="the binary to start")
    parser.add_argument("--server_flags", default="",
                        help="more flags for it, separated by blanks")
    parser.add_argument("--size", choices=sizes.BY_NAME, default="small")
    parser.add_argument("--quick", action="store_true",
                        help="the same as --size quick")
    parser.add_argument("--tasks", default=",".join(TASKS),
                        help="which, separated by commas (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="start no request after this time; run again to "
                        "go on")
    parser.add_argument("--streams", type=int, default=32,
                        help="requests at a time")
    parser.add_argument("--data", type=pathlib.Path, default=texts.BUNDLED,
                        help="folder of the test texts")
    parser.add_argument("--profiles", type=pathlib.Path,
                        help="layer profiles to measure; default: the file "
                        "beside the model, if there is one")
    parser.add_argument("--results", type=pathlib.Path,
                        default=ROOT / "build/quality/results.jsonl",
                        help="where answers are kept")
    parser.add_argument("--report", type=pathlib.Path,
                        help="the page to write; plots go beside it into "
                        "quality/ (default: build/quality/quality.md; the "
                        "project's own is docs/quality.md)")
    parser.add_argument("--verify", type=int, metavar="N", help="ask N of the "
                        "answered requests again and compare; measure nothing")
    parser.add_argument("--report_only", action="store_true",
                        help="measure nothing, write the page")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.size = "quick"
    unknown = set(chosen.tasks.split(",")) - set(TASKS)
    if unknown:
        parser.error(f"--tasks: {', '.join(sorted(unknown))}, want some of "
                     + ", ".join(TASKS))
    if chosen.report is None:
        chosen.report = chosen.results.parent / "quality.md"
    return chosen


def identity(info: dict) -> dict:
    """What decides an answer besides the request: not the number of threads."""
    kept = {key: info.get(key) for key in (
        "model", "architecture", "parameters", "layers", "vocabulary",
        "context_tokens", "weight_dtype", "cache_dtype")}
    kept["backend"] = ", ".join(
        part for part in info.get("backend", "").split(", ")
        if "thread" not in part)
    return kept


def read_profiles(path) -> dict:
    """name -> weights of a profile file; {} where there is none."""
    if path is None or not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {name: tuple(profile["weights"])
            for name, profile in content["profiles"].items()}


class RememberedTokens:
    """Tokenizes each text once."""

    def __init__(self, client):
        self._client = client
        self._known = {}

    def __call__(self, text: str) -> list:
        if text not in self._known:
            self._known[text] = self._client.tokenize(text)
        return self._known[text]


def verify(answers, context, wanted, count: int) -> int:
    asked, changed = answers.verify(
        [job for name in TASKS if name in wanted
         for job in TASKS[name][0](context)], count)
    for label in changed:
        print(f"answered otherwise now: {label}")
    print(f"{asked} asked again, {len(changed)} changed")
    return 1 if changed else 0


def measure(chosen, address: str) -> int:
    client = wire.Client(address)
    info = client.wait_ready(120)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    answers = runner.Runner(
        client, store.Store(chosen.results), identity(info), chosen.streams,
        time.monotonic() + 60 * chosen.minutes)
    path = chosen.profiles or pathlib.Path(f"{chosen.model}.profiles.json")
    context = grid.Context(
        size=sizes.BY_NAME[chosen.size], texts=texts.Texts(chosen.data),
        tokenize=RememberedTokens(client), runner=answers,
        profiles=read_profiles(path))
    wanted = chosen.tasks.split(",")
    if chosen.verify:
        return verify(answers, context, wanted, chosen.verify)
    begin = time.monotonic()
    if not chosen.report_only:
        answers.run([job for name in TASKS if name in wanted
                     for job in TASKS[name][0](context)])
    for what, said in sorted({**answers.not_offered,
                              **answers.refused}.items()):
        print(f"left out: {what}: {said}", file=sys.stderr)
    if answers.left:
        print(f"{answers.left} requests left; run again to go on",
              file=sys.stderr)
    report.write(chosen, context, info,
                 {name: TASKS[name][1](context) for name in TASKS
                  if name in wanted}, time.monotonic() - begin)
    print(chosen.report)
    return 1 if answers.refused else 0


def main() -> int:
    chosen = arguments()
    if chosen.address:
        return measure(chosen, chosen.address)
    if not chosen.server.exists():
        sys.exit(f"{chosen.server} is missing: cmake --preset release && cmake "
                 "--build --preset release, or give --address")
    log = chosen.results.parent / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with server_process.ServerProcess(chosen.server, chosen.model,
                                      chosen.server_flags.split(),
                                      log) as address:
        return measure(chosen, address)


if __name__ == "__main__":
    sys.exit(main())
