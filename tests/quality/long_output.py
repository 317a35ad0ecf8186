"""(e) Long answers: do they go round in circles, and do they keep a format?

Free texts: 1,000 tokens and more, sampled with fixed seeds (greedy decoding of
a model this small loops whatever the cache does); no end is taken before that.
Formats: greedy, the model ends when it likes.
"""

import statistics

from . import formats, grid, intervals, runner, settings, table

LOOPS = "long texts"
FORMATS = "formats"

TOPICS = (
    "Write a long story about a lighthouse keeper who finds a message in a "
    "bottle.",
    "Write a detailed guide to growing tomatoes, from seed to harvest.",
    "Explain in detail how a bicycle works and how its parts developed.",
    "Write a long letter from a traveller who crosses a desert on foot.",
    "Describe a day in the life of a medieval town, hour by hour.",
    "Write an essay on why people keep diaries.",
    "Tell the story of a village that has to move because of a dam.",
    "Explain how bread is made, and what can go wrong at each step.",
    "Write a long dialogue between a teacher and a student about the sea.",
    "Describe the plan of a small library, room by room.",
    "Write a travel report about a train journey through mountains.",
    "Explain the seasons to a curious child, with many examples.",
    "Write a story about two brothers who repair an old boat.",
    "Write a detailed review of an imaginary restaurant.",
    "Explain how a city gets its water, from the river to the tap.",
    "Write a long speech for the opening of a school.",
)

# (prompt, check of formats.keeps, tokens)
FORMAT_PROMPTS = (
    ("List 5 fruits as a numbered list.", {"list": 5}, 120),
    ("Write a numbered list of exactly 8 tips for a good night's sleep.",
     {"list": 8}, 320),
    ("Give 10 ideas for a school project as a numbered list, one line each.",
     {"list": 10}, 320),
    ("Write a numbered list of 12 animals, one per line, no other text.",
     {"list": 12}, 160),
    ("Return a JSON object with the keys \"name\", \"age\" and \"city\" for an "
     "invented person. Answer with JSON only.",
     {"json": ["name", "age", "city"]}, 120),
    ("Return a JSON object with the keys \"title\" and \"author\" for a famous "
     "novel. Answer with JSON only.", {"json": ["title", "author"]}, 120),
    ("Return a JSON object with the keys \"ingredients\" (a list) and "
     "\"steps\" (a list) for pancakes. Answer with JSON only.",
     {"json": ["ingredients", "steps"]}, 320),
    ("Describe the sea in at most 50 words.", {"words": [5, 50]}, 200),
    ("Explain photosynthesis in at most 80 words.", {"words": [10, 80]}, 240),
    ("Write a summary of the story of Cinderella in at most 120 words.",
     {"words": [20, 120]}, 320),
    ("Write one sentence about the moon, in at most 25 words.",
     {"words": [4, 25]}, 100),
    ("Write a poem of exactly 4 lines about rain.", {"lines": 4}, 120),
    ("Name the four seasons.",
     {"contains": ["spring", "summer", "autumn", "winter"]}, 120),
    ("Name the days of the week, separated by commas.",
     {"contains": ["monday", "wednesday", "friday", "sunday"]}, 80),
    ("Write a short letter that begins with \"Dear Anna\" and ends with "
     "\"Yours, Tom\".", {"contains": ["dear anna", "yours, tom"]}, 240),
    ("Write a numbered list of 6 steps for washing a car.", {"list": 6}, 240),
)


def rows_of(context) -> list:
    """Half of everything (prompt and answer) for the policies; half of the
    prompt alone with several min_tokens for Keyformer, which is where
    min_tokens matters: these prompts are short."""
    half = dict(basis="BUDGET_BASIS_TOTAL")
    found = [settings.FULL]
    found += [settings.variant(name, 0.5, f"{name}, of prompt + answer", **half)
              for name in settings.POLICIES if name != "quest"]
    for profile, weights in context.profiles.items():
        found.append(settings.profiled(profile, weights, 0.5,
                                       suffix=", of prompt + answer", **half))
    found += [settings.variant("keyformer", 0.5,
                               f"keyformer, of the prompt, min_tokens {least}",
                               min_tokens=least)
              for least in (1, 64, 128, 256, 512)]
    return found


def chat(content: str) -> dict:
    return {"messages": [{"role": "user", "content": content}]}


def loop_jobs(context) -> list:
    tokens = context.size.long_tokens
    found = []
    for i, topic in enumerate(TOPICS[:context.size.long_prompts]):
        for setting in rows_of(context):
            request = {
                "chat": chat(topic), "cache": setting.cache,
                "sampling": {"temperature": 0.7, "top_p": 0.95,
                             "seed": str(i + 1)},
                "stopping": {"max_new_tokens": tokens,
                             "min_new_tokens": tokens}}
            found.append(runner.Job(LOOPS, str(i), setting, request,
                                    tokens / 300))
    return found


def format_jobs(context) -> list:
    return [runner.Job(FORMATS, str(i), setting,
                       {"chat": chat(prompt), "cache": setting.cache,
                        "stopping": {"max_new_tokens": tokens}}, tokens / 300)
            for i, (prompt, _, tokens) in enumerate(
                FORMAT_PROMPTS[:context.size.format_prompts])
            for setting in rows_of(context)]


def jobs(context) -> list:
    return loop_jobs(context) + format_jobs(context)


def text_of(answer: dict) -> str:
    return answer["sequences"][0]["text"]


def loop_table(context) -> table.Table:
    answers = grid.Grid(loop_jobs(context), context.runner)
    rows = []
    for setting in answers.settings:
        pairs = answers.pairs(setting, settings.FULL)
        if not pairs:
            continue
        repeats = [formats.repeated_share(text_of(a)) for _, a, _ in pairs]
        base = [formats.repeated_share(text_of(b)) for _, _, b in pairs]
        looping = sum(formats.loops(text_of(a)) for _, a, _ in pairs)
        rows.append([
            setting.name, table.percent(setting.budget),
            table.evicted(answers.evicted(setting)),
            table.percent(statistics.fmean(repeats), 1),
            table.interval(*intervals.bootstrap_mean(
                [a - b for a, b in zip(repeats, base)]),
                show=lambda v: table.signed(100 * v, 1)),
            table.share_of(looping, len(pairs),
                           intervals.wilson(looping, len(pairs)))])
    return table.Table(
        f"Texts of {context.size.long_tokens:,} tokens",
        ["policy", "budget", "evicted", "repeated 4-grams",
         "points against FULL, 95 %", "end in a loop"], rows,
        table.NOTHING_EVICTED_NOTE + ".")


def format_table(context) -> table.Table:
    answers = grid.Grid(format_jobs(context), context.runner)
    checks = {str(i): check for i, (_, check, _) in enumerate(FORMAT_PROMPTS)}
    rows = []
    full = {item for item, answer in answers[settings.FULL].items()
            if formats.keeps(checks[item], text_of(answer))}
    for setting in answers.settings:
        found = answers[setting]
        if not found:
            continue
        kept = {item for item, answer in found.items()
                if formats.keeps(checks[item], text_of(answer))}
        known = full & set(found)
        rows.append([setting.name, table.percent(setting.budget),
                     table.evicted(answers.evicted(setting)),
                     table.share_of(len(kept), len(found), intervals.wilson(
                         len(kept), len(found))),
                     table.share_of(len(kept & known), len(known),
                                    intervals.wilson(len(kept & known),
                                                     len(known)))])
    return table.Table("Formats kept", ["policy", "budget", "evicted", "kept",
                                        "of those that FULL keeps"], rows,
                       table.NOTHING_EVICTED_NOTE + ".")


def report(context):
    return [loop_table(context), format_table(context)], []
