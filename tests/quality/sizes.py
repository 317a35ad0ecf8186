"""How much is measured: --size quick (10 minutes on 2 idle cores), small (about
an hour), full (up to 6 hours)."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    budgets: tuple  # of the likelihood sweep
    needle_budgets: tuple
    few_budgets: tuple  # of the costlier tasks
    # (prompt tokens, windows, budgets or None for all of them)
    nll: tuple
    nll_forced: int  # tokens of the continuation
    needle_file_lengths: tuple  # which rows of the needle file
    needles_made: int  # more items, of 512 to 1,024 tokens
    choices: int  # items of COPA and of Winogrande
    shots: tuple
    reports: int  # GovReport documents, the shortest first
    summary_tokens: int
    beam_reports: int
    beam_tokens: int
    long_prompts: int
    long_tokens: int
    format_prompts: int
    ablation_windows: int
    ablation_needles: int


QUICK = Size(
    budgets=(0.3, 0.5), needle_budgets=(0.3, 0.5), few_budgets=(0.5,),
    nll=((1024, 4, None),), nll_forced=96,
    needle_file_lengths=(512,), needles_made=0,
    choices=10, shots=(0,),
    reports=1, summary_tokens=96, beam_reports=0, beam_tokens=64,
    long_prompts=2, long_tokens=1024, format_prompts=4,
    ablation_windows=0, ablation_needles=0)

SMALL = Size(
    budgets=(0.2, 0.3, 0.5, 0.7, 0.9), needle_budgets=(0.3, 0.5, 0.7),
    few_budgets=(0.3, 0.5),
    nll=((1024, 8, None), (2048, 4, (0.2, 0.5)), (4096, 2, (0.5,)),
         (6016, 2, (0.5,))),
    nll_forced=128,
    needle_file_lengths=(512, 1024), needles_made=20,
    choices=60, shots=(0, 5),
    reports=4, summary_tokens=160, beam_reports=2, beam_tokens=96,
    long_prompts=8, long_tokens=1024, format_prompts=16,
    ablation_windows=6, ablation_needles=0)

FULL = Size(
    budgets=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    needle_budgets=(0.2, 0.3, 0.4, 0.5, 0.7, 0.9),
    few_budgets=(0.3, 0.5, 0.7, 0.9),
    nll=((1024, 30, None), (2048, 12, None), (4096, 6, (0.2, 0.5, 0.7)),
         (6016, 6, (0.2, 0.5, 0.7))),
    nll_forced=128,
    needle_file_lengths=(512, 1024, 2048, 4096), needles_made=60,
    choices=500, shots=(0, 5),
    reports=9, summary_tokens=256, beam_reports=5, beam_tokens=160,
    long_prompts=16, long_tokens=1280, format_prompts=16,
    ablation_windows=30, ablation_needles=60)

BY_NAME = {"quick": QUICK, "small": SMALL, "full": FULL}
