"""(d) COPA and Winogrande by the likelihood of the forced answers.

COPA: the premise, "because" or "so", and the log-likelihood of each choice.
Winogrande: the sentence up to the blank with each option in it, and the
log-likelihood of the rest (partial scoring). The larger sum wins. The first
forced token comes from the prompt's own logits; for Winogrande it is what two
different prompts give, and counts.
"""

from . import grid, intervals, runner, settings, summaries, table

NAME = "choices"
CHANCE = 0.5


def copa_context(row: dict) -> str:
    link = "because" if row["question"] == "cause" else "so"
    return row["premise"].rstrip(".") + f" {link}"


def copa_choice(row: dict, which: int) -> str:
    choice = row[f"choice{which + 1}"]
    return " " + choice[0].lower() + choice[1:]


def copa(rows, shots: int, count: int) -> list:
    """(name, prompt, continuation, right or wrong answer's index, label)."""
    examples = "".join(copa_context(r) + copa_choice(r, r["label"]) + "\n\n"
                       for r in rows[-shots:]) if shots else ""
    return [(f"copa-{shots}-{i}", which, examples + copa_context(row),
             copa_choice(row, which), row["label"])
            for i, row in enumerate(rows[:count]) for which in (0, 1)]


def winogrande(rows, shots: int, count: int) -> list:
    def filled(row, which):
        return row["sentence"].replace("_", row[f"option{which + 1}"])

    examples = "".join(filled(r, r["label"]) + "\n\n"
                       for r in rows[-shots:]) if shots else ""
    found = []
    for i, row in enumerate(rows[:count]):
        before, after = row["sentence"].split("_", 1)
        for which in (0, 1):
            prompt = examples + before + row[f"option{which + 1}"]
            found.append((f"winogrande-{shots}-{i}", which, prompt, after,
                          row["label"]))
    return found


def sets(context) -> list:
    """(title, items)"""
    found = []
    for shots in context.size.shots:
        found.append((f"COPA, {shots} examples", copa(
            context.texts.rows("copa_balanced"), shots,
            context.size.choices)))
        found.append((f"Winogrande, {shots} examples", winogrande(
            context.texts.rows("winogrande_dev"), shots,
            context.size.choices)))
    return found


def jobs_of(context, items) -> list:
    found = []
    for setting in summaries.rows_of(context, (0.5,)):
        for name, which, prompt, continuation, _ in items:
            forced = context.tokenize(continuation)
            request = {"text": prompt, "forced_tokens": {"ids": forced},
                       "cache": setting.cache}
            found.append(runner.Job(NAME, f"{name}-{which}", setting, request,
                                    len(prompt) / 4 / 900 + 0.02))
    return found


def jobs(context) -> list:
    return [job for _, items in sets(context)
            for job in jobs_of(context, items)]


def picks(found: dict) -> dict:
    """item -> the choice with the larger likelihood; `found`: answers by
    "item-0" and "item-1"."""
    sums = {}
    for name, answer in found.items():
        item, which = name.rsplit("-", 1)
        sums.setdefault(item, {})[int(which)] = sum(
            answer["sequences"][0]["logprobs"])
    return {item: int(both[1] > both[0])
            for item, both in sums.items() if len(both) == 2}


def one_table(context, title: str, items) -> table.Table:
    answers = grid.Grid(jobs_of(context, items), context.runner)
    labels = {name: label for name, _, _, _, label in items}
    base = picks(answers[settings.FULL])
    rows, at_chance = [], False
    for setting in answers.settings:
        chosen = picks(answers[setting])
        if not chosen:
            continue
        hits = sum(labels[item] == pick for item, pick in chosen.items())
        if setting == settings.FULL:
            at_chance = not intervals.excludes_chance(hits, len(chosen), CHANCE)
        both = [item for item in chosen if item in base]
        same = sum(chosen[item] == base[item] for item in both)
        rows.append([setting.name, table.percent(setting.budget),
                     table.evicted(answers.evicted(setting)),
                     table.share_of(hits, len(chosen),
                                    intervals.wilson(hits, len(chosen))),
                     table.share_of(same, len(both),
                                    intervals.wilson(same, len(both)))])
    if at_chance:
        title += " — the model is at chance here"
    return table.Table(title, ["policy", "budget", "evicted", "right",
                               "same choice as FULL"], rows,
                       table.NOTHING_EVICTED_NOTE + ".")


def report(context):
    return [one_table(context, title, items)
            for title, items in sets(context)], []
