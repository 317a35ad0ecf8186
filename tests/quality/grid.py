"""The answers of one task, by setting and item; what its tables are made of."""

import dataclasses


def evicted_share(answer: dict) -> float:
    """The share of the tokens that were fed which the cache no longer held at
    the end, over all sequences."""
    sequences = max(1, len(answer["sequences"]))
    fed = (sequences * answer["prompt_tokens"] + answer["generated_tokens"]
           - sequences)
    return answer["evicted_tokens"] / fed if fed > 0 else 0.0


@dataclasses.dataclass
class Context:
    """What every task is handed."""

    size: object  # sizes.Size
    texts: object  # texts.Texts
    tokenize: object  # text -> list of ids, remembered
    runner: object  # runner.Runner
    # The layer profiles to measure: name -> weights.
    profiles: dict = dataclasses.field(default_factory=dict)


class Grid:
    """grid[setting] is {item: answer} with what there is."""

    def __init__(self, jobs, runner):
        self.settings = []
        self._answers = {}
        for job in jobs:
            if job.setting not in self._answers:
                self.settings.append(job.setting)
                self._answers[job.setting] = {}
            answer = runner.answer(job)
            if answer is not None:
                self._answers[job.setting][job.item] = answer

    def __getitem__(self, setting) -> dict:
        return self._answers.get(setting, {})

    def pairs(self, setting, baseline) -> list:
        """(item, answer, the baseline's answer) of the items that both have."""
        base = self[baseline]
        return [(item, answer, base[item])
                for item, answer in self[setting].items() if item in base]

    def evicted(self, setting) -> float:
        answers = self[setting].values()
        if not answers:
            return 0.0
        return sum(map(evicted_share, answers)) / len(answers)
