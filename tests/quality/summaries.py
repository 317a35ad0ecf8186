"""(c) Summaries of GovReport documents by ROUGE, and (f) the same by beam
search of width 4, as in the paper."""

import statistics

from . import grid, intervals, nll, rouge, runner, settings, table

NAME = "summaries"
BEAM = "beam summaries"
BEAM_WIDTH = 4


def documents(context, count: int) -> list:
    rows = sorted(context.texts.rows("govreport"),
                  key=lambda row: len(row["document"]))
    return rows[:count]


def request(row: dict, setting, tokens: int) -> dict:
    content = row["document"] + "\n\n" + row["instruction"]
    return {"chat": {"messages": [{"role": "user", "content": content}]},
            "cache": setting.cache, "stopping": {"max_new_tokens": tokens}}


def rows_of(context, budgets) -> list:
    found = [settings.FULL]
    for name in settings.POLICIES:
        found += [settings.policy(name, budget) for budget in budgets]
    for profile, weights in context.profiles.items():
        found += [settings.profiled(profile, weights, budget)
                  for budget in budgets]
    return found


def jobs(context) -> list:
    tokens = context.size.summary_tokens
    return [runner.Job(NAME, str(i), setting, request(row, setting, tokens),
                       len(row["document"]) / 4.5 / 700 + tokens / 100)
            for i, row in enumerate(documents(context, context.size.reports))
            for setting in rows_of(context, context.size.few_budgets)]


def beam_jobs(context) -> list:
    tokens = context.size.beam_tokens
    found = []
    for i, row in enumerate(documents(context, context.size.beam_reports)):
        for setting in rows_of(context, (0.5,)):
            if setting.name == "quest":
                continue  # refused with beams
            asked = request(row, setting, tokens)
            asked["sampling"] = {"beam": {"width": BEAM_WIDTH}}
            if setting.name.startswith("keyformer"):
                asked["cache"] = dict(setting.cache)
            found.append(runner.Job(
                BEAM, str(i), setting, asked,
                len(row["document"]) / 4.5 / 700 + tokens / 30))
    return found


def best_text(answer: dict) -> str:
    return answer["sequences"][0]["text"]


def scores(pairs, references: dict) -> dict:
    """Means of ROUGE against the reference and against FULL's summary, and the
    interval of the ROUGE-L difference to FULL."""
    theirs = [rouge.rouge(best_text(a), references[item])
              for item, a, _ in pairs]
    base = [rouge.rouge(best_text(b), references[item]) for item, _, b in pairs]
    full = [rouge.rouge_l(best_text(a), best_text(b)) for _, a, b in pairs]
    mean = {key: statistics.fmean(s[key] for s in theirs)
            for key in ("rouge1", "rouge2", "rougeL")}
    mean["full"] = statistics.fmean(full)
    mean["interval"] = intervals.bootstrap_mean(
        [a["rougeL"] - b["rougeL"] for a, b in zip(theirs, base)])
    return mean


def one_table(context, title: str, found_jobs: list) -> table.Table:
    answers = grid.Grid(found_jobs, context.runner)
    references = {str(i): row["summary"] for i, row in enumerate(
        documents(context, max(context.size.reports,
                               context.size.beam_reports)))}
    rows = []
    for setting in answers.settings:
        pairs = answers.pairs(setting, settings.FULL)
        if not pairs:
            continue
        mean = scores(pairs, references)
        rows.append([setting.name, table.percent(setting.budget),
                     table.evicted(answers.evicted(setting)), len(pairs),
                     *(f"{100 * mean[key]:.1f}"
                       for key in ("rouge1", "rouge2", "rougeL")),
                     table.interval(*(100 * b for b in mean["interval"]),
                                    show=lambda v: table.signed(v, 1)),
                     f"{100 * mean['full']:.1f}"])
    return table.Table(
        title, ["policy", "budget", "evicted", "documents", "ROUGE-1",
                "ROUGE-2", "ROUGE-L", "ROUGE-L against FULL's, 95 %",
                "ROUGE-L to FULL's text"], rows, table.NOTHING_EVICTED_NOTE
        + ". Columns ROUGE-1 to -L: F1 against the reference summary; the last:"
          " against the text that FULL wrote.")


def report(context):
    found = [one_table(context, "Greedy summaries", jobs(context))]
    if context.size.beam_reports:
        found.append(one_table(
            context, f"Summaries by beam search, width {BEAM_WIDTH}",
            beam_jobs(context)))
    return found, []
