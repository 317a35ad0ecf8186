"""(b) Needle retrieval: is a fact of the prompt still found after it was cut?

The prompt ends in the question and the beginning of the answer; the answer is
greedy and counts when the whole number is right. Its first digit comes from the
prompt's own logits; the other six from what the cache kept.
"""

from . import grid, intervals, nll, runner, settings, svg, table

NAME = "needles"
ANSWER_TOKENS = 12


def job(setting, item: str, prompt: str, task: str = NAME) -> runner.Job:
    request = {"text": prompt, "cache": setting.cache,
               "stopping": {"max_new_tokens": ANSWER_TOKENS}}
    return runner.Job(task, item, setting, request, len(prompt) / 4 / 900)


def items(context) -> list:
    return context.texts.needles(context.size.needle_file_lengths,
                                 context.size.needles_made)


def jobs(context) -> list:
    return [job(setting, item, prompt)
            for setting in nll.sweep(context, context.size.needle_budgets)
            for item, prompt, _ in items(context)]


def right(answer: dict, number: str) -> bool:
    """Whether the number is said, as a whole, not as part of a longer one."""
    text = answer["sequences"][0]["text"]
    at = text.find(number)
    if at < 0:
        return False
    end = at + len(number)
    return not (text[at - 1:at].isdigit() or text[end:end + 1].isdigit())


def measure(answers: grid.Grid, setting, numbers: dict) -> dict:
    """`numbers`: item -> answer. "kept": of the facts that FULL finds, how many
    this setting finds too."""
    found = answers[setting]
    if not found:
        return None
    hits = {item for item, answer in found.items()
            if right(answer, numbers[item])}
    known = {item for item, answer in answers[settings.FULL].items()
             if right(answer, numbers[item])} & set(found)
    return {"hits": len(hits), "items": len(found),
            "interval": intervals.wilson(len(hits), len(found)),
            "known": len(known), "kept": len(known & hits),
            "kept_interval": intervals.wilson(len(known & hits), len(known)),
            "evicted": answers.evicted(setting)}


HEADER = ["policy", "budget", "evicted", "right", "of FULL's facts"]


def row(setting, found: dict) -> list:
    return [setting.name, table.percent(setting.budget),
            table.evicted(found["evicted"]),
            table.share_of(found["hits"], found["items"], found["interval"]),
            table.share_of(found["kept"], found["known"],
                           found["kept_interval"])]


def report(context):
    answers = grid.Grid(jobs(context), context.runner)
    numbers = {item: number for item, _, number in items(context)}
    rows, lines = [], {}
    for setting in answers.settings:
        found = measure(answers, setting, numbers)
        if found is None:
            continue
        rows.append(row(setting, found))
        if setting != settings.FULL:
            total = max(1, found["known"])
            lines.setdefault(setting.name, []).append(
                (setting.budget, found["kept"] / total,
                 *found["kept_interval"]))
    return [table.Table(
        "Facts found after the prompt was cut", HEADER, rows,
        table.NOTHING_EVICTED_NOTE + "; intervals are Wilson's, 95 %.")], [
            ("needles", svg.plot(
                lines, title="Facts kept, of those that FULL finds",
                x_label="budget, share of the prompt",
                y_label="share of facts", y_range=(0, 1)))]
