"""(a) The likelihood of a text's continuation after a prompt that was cut.

The continuation is forced, so every token but the first is predicted from what
the cache kept (the first comes from the prompt's own logits, which no eviction
has touched: it is left out).
"""

import statistics

from . import grid, intervals, runner, settings, svg, table

NAME = "nll"


def windows(context, tokens: int, count: int):
    """`count` windows of tokens + continuation: one of each text in turn, then
    the next window of each."""
    need = tokens + context.size.nll_forced
    found, start = [], 0
    while len(found) < count:
        before = len(found)
        for name, text in context.texts.long_texts():
            ids = context.tokenize(text[:60000])
            if len(ids) >= start + need and len(found) < count:
                found.append((f"{name}@{start}", ids[start:start + tokens],
                              ids[start + tokens:start + need]))
        if len(found) == before:
            break
        start += need
    return found


def job(context, setting, item: str, prompt: list, forced: list,
        task: str = NAME) -> runner.Job:
    request = {"token_ids": {"ids": prompt}, "forced_tokens": {"ids": forced},
               "cache": setting.cache, "output": {"top_logprobs": 1}}
    return runner.Job(task, f"{len(prompt)}/{item}", setting, request,
                      len(prompt) / 900 + len(forced) / 300)


def sweep(context, budgets) -> list:
    rows = [settings.FULL]
    for name in settings.POLICIES:
        rows += [settings.policy(name, budget) for budget in budgets]
    rows += extra(context, budgets)
    return rows


def extra(context, budgets) -> list:
    """Keyformer with the profiles, and with what else might be a default."""
    age = dict(score_norm="SCORE_NORM_AGE")
    late = dict(score_queries=256)
    rows = [settings.variant("keyformer", budget, "keyformer, age", **age)
            for budget in budgets if budget <= 0.5]
    rows += [settings.variant("keyformer", budget, "keyformer, last 256 rows",
                              **late) for budget in budgets if budget == 0.5]
    for profile, weights in context.profiles.items():
        rows += [settings.profiled(profile, weights, budget)
                 for budget in budgets if budget <= 0.7]
        for suffix, changes in ((", age", age), (", last 256 rows", late)):
            rows += [settings.profiled(profile, weights, budget, suffix,
                                       **changes)
                     for budget in budgets if budget == 0.5]
    return rows


def jobs(context) -> list:
    found = []
    for tokens, count, budgets in context.size.nll:
        for item, prompt, forced in windows(context, tokens, count):
            found += [job(context, setting, item, prompt, forced)
                      for setting in sweep(context,
                                           budgets or context.size.budgets)]
    return found


def tokens_nll(answer: dict) -> float:
    """Nats per forced token, without the first."""
    return -statistics.fmean(answer["sequences"][0]["logprobs"][1:])


def agreement(answer: dict, base: dict) -> float:
    """The share of steps at which both have the same most probable token."""
    ours = answer["sequences"][0]["best"][1:]
    theirs = base["sequences"][0]["best"][1:]
    return statistics.fmean(a == b for a, b in zip(ours, theirs))


def measure(answers: grid.Grid, setting, prefix: str = "") -> dict:
    """Difference to FULL and agreement over the items that start with
    `prefix`; None if there are none."""
    pairs = [(a, b) for item, a, b in answers.pairs(setting, settings.FULL)
             if item.startswith(prefix)]
    if not pairs:
        return None
    differences = [tokens_nll(a) - tokens_nll(b) for a, b in pairs]
    return {
        "items": len(pairs),
        "nll": statistics.fmean(tokens_nll(a) for a, _ in pairs),
        "difference": statistics.fmean(differences),
        "interval": intervals.bootstrap_mean(differences),
        "agreement": statistics.fmean(agreement(a, b) for a, b in pairs),
        "evicted": statistics.fmean(grid.evicted_share(a) for a, _ in pairs),
    }


HEADER = ["policy", "budget", "windows", "evicted", "NLL", "against FULL", "95 %",
          "same top-1"]


def row(setting, found: dict) -> list:
    return [setting.name, table.percent(setting.budget), found["items"],
            table.evicted(found["evicted"]), f"{found['nll']:.3f}",
            table.signed(found["difference"]),
            table.interval(*found["interval"]),
            table.percent(found["agreement"], 1)]


def report(context):
    """(tables, plots)."""
    answers = grid.Grid(jobs(context), context.runner)
    tables, plots = [], []
    for tokens, _, _ in context.size.nll:
        prefix = f"{tokens}/"
        rows, lines = [], {}
        for setting in answers.settings:
            found = measure(answers, setting, prefix)
            if found is None:
                continue
            rows.append(row(setting, found))
            if setting != settings.FULL:
                lines.setdefault(setting.name, []).append(
                    (setting.budget, found["difference"], *found["interval"]))
        tables.append(table.Table(
            f"Prompts of {tokens:,} tokens, {context.size.nll_forced} forced",
            HEADER, rows,
            table.NOTHING_EVICTED_NOTE + " (QUEST keeps everything and reads "
            "only the budget)."))
        if any(len(points) > 2 for points in lines.values()):
            plots.append((f"nll_{tokens}", svg.plot(
                lines, title=f"NLL per token against FULL, {tokens:,}-token "
                "prompts", x_label="budget, share of the prompt",
                y_label="nats per token")))
    return tables, plots
