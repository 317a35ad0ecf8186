"""Writes the page: what was run, the tables, the plots."""

import datetime
import os
import pathlib
import platform


HERE = pathlib.Path(__file__).resolve().parent

TITLES = {
    "nll": ("Likelihood of a continuation",
            "After a prompt of real text, 128 more tokens of the same text are "
            "forced; NLL is in nats per token, its first token (which no "
            "eviction has touched) left out. Budgets are shares of the prompt, "
            "`min_tokens` is 1. Intervals: bootstrap over the windows."),
    "needles": ("Facts found again",
                "A number is named once in a text of 512 to 1,024 tokens, and "
                "asked for at its end; in every second text three other numbers "
                "are named too."),
    "summaries": ("Summaries",
                  "GovReport documents through the chat template."),
    "choices": ("Choices by likelihood",
                "COPA and Winogrande. The prompts have 10 to 200 tokens: half "
                "of that is a very small cache, smaller than the server's "
                "default would ever be."),
    "long": ("Long answers and formats",
             "Prompts of 30 to 60 tokens. \"Of prompt + answer\": k is half of "
             "both. \"Of the prompt\": k is half of the prompt, or "
             "`min_tokens` if that is more."),
    "ablations": ("Ablations",
                  "One option at a time, the paper's setting otherwise "
                  "(Keyformer, Gumbel noise anew for every query, temperature "
                  "1 to 2, recent 30 %, a set for each head); 1,024-token "
                  "prompts. Differences in NLL are to FULL; brackets: 95 %."),
}


def machine() -> str:
    model = "unknown CPU"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next(line.split(":", 1)[1].strip() for line in lines
                         if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{len(os.sched_getaffinity(0))} cores of {model}, " \
           f"{platform.system()}"


def head(chosen, info: dict, spent: float) -> str:
    date = datetime.date.today().isoformat()
    return f"""# Quality: what a cache budget costs

Written by the command below; do not edit. The defaults that follow from it:
[adr/0006](adr/0006-defaults.md).

    python3 -m tests.quality --size {chosen.size} --report docs/quality.md

{date}, {machine()}; {info['model']}, {info.get('backend', '')}, weights \
{info.get('weight_dtype', '')}, cache {info.get('cache_dtype', '')}. Answers \
are bit for bit the same however the server is loaded, so results were gathered
over several runs of the command, on a machine that did other work as well.
Needs python3-grpcio and python3-protobuf. Sized, by estimate, for two
idle cores: `--quick` 10 minutes, `--size small` an hour, `--size full` 6 hours.

- **evicted**: the share of all tokens fed that the cache no longer held at the
  end. Where nothing was evicted the row is marked †.
- **budget**: the share of the prompt that is kept (QUEST: read in each step).
- Likelihoods are of forced continuations, never of the prompt, which eviction
  does not touch.
- Settings are the paper's, written out in `tests/quality/settings.py`, not
  the server's defaults.
"""


def write(chosen, context, info: dict, reports: dict, spent: float) -> None:
    """`reports`: task -> (tables, plots)."""
    page = chosen.report
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = [head(chosen, info, spent)]
    findings = HERE / "findings.md"
    if findings.exists():
        parts.append(findings.read_text(encoding="utf-8"))
    for task, (tables, plots) in reports.items():
        title, text = TITLES[task]
        parts.append(f"## {title}\n\n{text}\n")
        for name, picture in plots:
            if not picture:
                continue
            folder = page.parent / "quality"
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
            parts.append(f"![{name}](quality/{name}.svg)\n")
        parts += [found.markdown() for found in tables]
    if context.runner.not_offered:
        parts.append("## Left out\n\n" + "\n".join(
            f"- {name}: {said}" for name, said in sorted(
                context.runner.not_offered.items())) + "\n")
    page.write_text("\n".join(parts), encoding="utf-8")
