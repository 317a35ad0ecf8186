"""The paper's ablations and ours: one option at a time is changed, and the
likelihood (a) and the needles (b) are measured again."""

import dataclasses
import statistics

from . import grid, intervals, needles, nll, settings, table

NAME = "ablations"
BUDGETS = (0.5, 0.25)


@dataclasses.dataclass(frozen=True)
class Group:
    title: str
    paper: str  # what the paper says, in a few words; empty: not the paper's
    variants: tuple  # (label, changes to the paper's Keyformer)
    best: tuple = ()  # the variants that the paper finds best


GROUPS = (
    Group("Noise", "Gumbel best, then Gaussian, constant and none", (
        ("gumbel", {}),
        ("gumbel, another seed", {"noise_seed": 2}),
        ("gaussian", {"noise": "SCORE_NOISE_GAUSSIAN"}),
        ("constant", {"noise": "SCORE_NOISE_CONSTANT"}),
        ("none", {"noise": "SCORE_NOISE_NONE"})),
          ("gumbel", "gumbel, another seed")),
    Group("Temperature", "1 to 2 better than any fixed value", (
        ("1 to 2", {}),
        ("1", {"tau_end": 1.0}),
        ("2", {"tau_init": 2.0}),
        ("1 to 4", {"tau_end": 4.0}),
        ("2 to 1", {"tau_init": 2.0, "tau_end": 1.0})), ("1 to 2",)),
    Group("Noise drawn", "", (
        ("for every query", {}),
        ("once per key", {"resample": "NOISE_RESAMPLE_ONCE"}))),
    Group("Scope of a set", "per layer and head better than one shared", (
        ("head", {}),
        ("layer", {"scope": "SELECTION_SCOPE_LAYER"}),
        ("model", {"scope": "SELECTION_SCOPE_MODEL"})), ("head",)),
    Group("Positions", "the original ones are better", (
        ("original", {}),
        ("in the cache", {"positions": "CACHE_POSITIONS_CACHE"})),
          ("original",)),
    Group("Recent window, share of the budget", "20 to 30 % best", (
        ("30 %", {}),
        ("0", {"recent_ratio": 0.0}),
        ("10 %", {"recent_ratio": 0.1}),
        ("20 %", {"recent_ratio": 0.2}),
        ("50 %", {"recent_ratio": 0.5}),
        ("70 %", {"recent_ratio": 0.7}),
        ("100 %", {"recent_ratio": 1.0})), ("20 %", "30 %")),
    Group("Prompt rows that score", "", (
        ("all", {}),
        ("the last 16", {"score_queries": 16}),
        ("the last 64", {"score_queries": 64}),
        ("the last 256", {"score_queries": 256}))),
    Group("Scores in decode", "", (
        ("go on", {}),
        ("stay", {"decode_scores": False}))),
    Group("Normalised by age", "", (
        ("no", {}),
        ("yes", {"score_norm": "SCORE_NORM_AGE"}),
        ("yes, without noise", {"score_norm": "SCORE_NORM_AGE",
                                "noise": "SCORE_NOISE_NONE"}))),
    Group("Basis of the budget", "", (
        ("prompt", {}),
        ("prompt + answer", {"basis": "BUDGET_BASIS_TOTAL"}))),
)


def setting(group: Group, label: str, changes: dict, budget: float):
    return settings.variant("keyformer", budget, f"{group.title}: {label}",
                            **changes)


def all_settings(budget: float) -> list:
    return [setting(group, label, changes, budget)
            for group in GROUPS for label, changes in group.variants]


def nll_jobs(context) -> list:
    found = []
    for item, prompt, forced in nll.windows(context, 1024,
                                            context.size.ablation_windows):
        found += [nll.job(context, s, item, prompt, forced, NAME)
                  for s in [settings.FULL] + [
                      s for b in BUDGETS for s in all_settings(b)]]
    return found


def needle_items(context) -> list:
    return needles.items(context)[:context.size.ablation_needles]


def needle_jobs(context) -> list:
    return [needles.job(s, item, prompt, NAME)
            for s in [settings.FULL] + all_settings(BUDGETS[0])
            for item, prompt, _ in needle_items(context)]


def jobs(context) -> list:
    if not context.size.ablation_windows:
        return []
    return nll_jobs(context) + needle_jobs(context)


def report(context):
    if not context.size.ablation_windows:
        return [], []
    likelihood = grid.Grid(nll_jobs(context), context.runner)
    facts = grid.Grid(needle_jobs(context), context.runner)
    numbers = {item: number for item, _, number in needle_items(context)}
    tables = []
    for group in GROUPS:
        rows, quarters = [], {}
        for label, changes in group.variants:
            half, quarter = (nll.measure(likelihood, setting(
                group, label, changes, budget)) for budget in BUDGETS)
            if half is None:
                continue
            row = [label, half["items"], table.evicted(half["evicted"])]
            for measured in (half, quarter):
                row += ["-", "-"] if measured is None else [
                    table.signed(measured["difference"]) + " ("
                    + table.interval(*measured["interval"]) + ")",
                    table.percent(measured["agreement"], 1)]
            quarters[label] = {
                item: nll.tokens_nll(answer) for item, answer in likelihood[
                    setting(group, label, changes, BUDGETS[1])].items()}
            found = needles.measure(facts, setting(group, label, changes,
                                                   BUDGETS[0]), numbers)
            if context.size.ablation_needles:
                row.append(f"{found['kept']}/{found['known']}" if found
                           else "-")
            rows.append(row)
        header = ["", "windows", "evicted at 50 %", "NLL against FULL, 50 %",
                  "same top-1", "25 %", "same top-1"]
        if context.size.ablation_needles:
            header.append("FULL's facts kept, 50 %")
        tables.append(table.Table(group.title, header, rows,
                                  verdict(group, quarters)))
    return tables, []


def verdict(group: Group, likelihoods: dict) -> str:
    """What the paper says, and what the smaller budget shows here.
    `likelihoods`: label -> item -> NLL; compared over the items of all."""
    paper = f"Paper: {group.paper}. " if group.paper else ""
    items = set.intersection(*map(set, likelihoods.values())) \
        if likelihoods else set()
    if not items or len(likelihoods) < 2:
        return paper.strip()
    means = {label: statistics.fmean(found[item] for item in items)
             for label, found in likelihoods.items()}
    best = min(means, key=means.get)
    ours = f"Lowest NLL at {BUDGETS[1]:.0%} here: {best}."
    claimed = [label for label in group.best if label in means]
    if not group.paper or not claimed:
        return f"{paper}{ours}"
    theirs = min(claimed, key=means.get)
    if best == theirs:
        return f"{paper}{ours} The same direction."
    low, high = intervals.bootstrap_mean(
        [likelihoods[theirs][item] - likelihoods[best][item]
         for item in items])
    gap = f"{theirs} is {table.signed(means[theirs] - means[best])} above it " \
          f"({table.interval(low, high)})"
    if low <= 0:
        return f"{paper}{ours} {gap}: not told apart."
    return f"{paper}{ours} {gap}: **not the paper's direction**."
