"""The cache settings that are compared: CacheOptions as JSON, with a name.

min_tokens is 1 everywhere, as in the paper: a budget is what it says.
"""

import dataclasses

POLICIES = {
    "window": "CACHE_POLICY_WINDOW",
    "h2o": "CACHE_POLICY_H2O",
    "keyformer": "CACHE_POLICY_KEYFORMER",
    "quest": "CACHE_POLICY_QUEST",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of a table. `budget` is the share of the basis, 1 for FULL."""

    name: str
    budget: float
    options: tuple = ()  # (field, value) pairs of CacheOptions, sorted

    @property
    def cache(self) -> dict:
        return {field: list(value) if isinstance(value, tuple) else value
                for field, value in self.options}

    @property
    def label(self) -> str:
        if self.budget == 1:
            return self.name
        return f"{self.name} {self.budget:.0%}"


def make(name: str, budget: float, **options) -> Setting:
    fields = {field: tuple(value) if isinstance(value, list) else value
              for field, value in options.items()}
    return Setting(name, budget, tuple(sorted(fields.items())))


FULL = make("full", 1.0, policy="CACHE_POLICY_FULL")

# What the score-based settings spell out, so that the server's own defaults
# (which these measurements choose) have no part in them. This is the paper's.
PAPER = {
    "h2o": dict(recent_ratio=0.3, scope="SELECTION_SCOPE_HEAD",
                score_queries=0, score_norm="SCORE_NORM_NONE",
                layer_profile="uniform"),
    "keyformer": dict(recent_ratio=0.3, scope="SELECTION_SCOPE_HEAD",
                      score_queries=0, score_norm="SCORE_NORM_NONE",
                      layer_profile="uniform", tau_init=1.0, tau_end=2.0,
                      noise="SCORE_NOISE_GUMBEL",
                      resample="NOISE_RESAMPLE_STEP"),
    "window": dict(sinks=4, layer_profile="uniform"),
    "quest": dict(full_layers=2),
}


def policy(name: str, budget: float, *, label: str = "", **changes) -> Setting:
    """`name` of POLICIES at a share of the prompt; `changes` to the paper's
    options, None takes one away."""
    options = dict(policy=POLICIES[name], ratio=budget, min_tokens=1,
                   basis="BUDGET_BASIS_PROMPT", **PAPER[name])
    if name == "keyformer":
        options["noise_seed"] = 1
    options.update(changes)
    options = {k: v for k, v in options.items() if v is not None}
    return make(label or name, budget, **options)


def variant(base: str, budget: float, label: str, **changes) -> Setting:
    return policy(base, budget, label=label, **changes)


def profiled(profile: str, weights, budget: float, suffix: str = "",
             **changes) -> Setting:
    """Keyformer with a layer profile, by its weights and not by its name, so
    that the results of a profile that has changed are not taken for its own."""
    return policy("keyformer", budget, label=f"keyformer, {profile}{suffix}",
                  layer_profile=None, layer_weights=list(weights), **changes)
