"""The oracle under observation: how near its decisions were, and what the faults of the paper's released code would do.

Every ranking of the oracle is one np.lexsort: of scores in select(), of page bounds, of a beam step's candidates. Its numpy is
replaced by one that shows each ranking to the running session, which knows where the cut is.
"""
import importlib.util
import pathlib
import sys

import numpy as np

TRAPS = ("drop_leaving", "frozen", "recent_zero_off", "bf16_scores")


def _load_oracle():
    path = pathlib.Path(__file__).resolve().parent.parent / "oracle" / "keyformer_oracle.py"
    spec = importlib.util.spec_from_file_location("keyformer_oracle", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = _load_oracle()
_select, _Session, _BeamSession = oracle.select, oracle.Session, oracle.BeamSession


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


class _Observed:
    """Mixed into the oracle's sessions."""

    trap = None  # None, or one of TRAPS
    last = None  # the newest session

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.min_gap = np.inf  # relative, of scores or page bounds at a cut
        self.min_margin = np.inf  # between the two best logits of a greedy choice
        self.min_beam_margin = np.inf  # between neighbours among a step's best 2 * width + 1 candidates
        self.evicting_steps, self.evicted = 0, False
        self.cut = None  # of the ranking to come: chosen are [:cut]
        _Observed.last = self

    def note_ranking(self, descending):
        if self.cut is None:
            best = descending[: 2 * self.width + 1]
            self.min_beam_margin = min(self.min_beam_margin, -np.diff(best).max())
        elif 0 < self.cut < len(descending):
            kept, dropped = descending[self.cut - 1], descending[self.cut]
            if kept == 0.0 or kept == -np.inf:
                return  # exact zeros (decode_scores off) tie everywhere; a trap dropped it
            self.min_gap = min(self.min_gap, (kept - dropped) / (abs(kept) if np.isfinite(kept) else 1.0))

    def select(self, positions, scores, k, w):
        leaving = len(positions) - w - 1
        if len(positions) > k:
            self.evicted = True
            if self.trap == "recent_zero_off" and w == 0:
                return np.arange(len(positions))
            if self.trap == "drop_leaving" or (self.trap == "frozen" and self.step):
                scores = np.array(scores)
                scores[leaving] = -np.inf
        self.cut = k - w
        kept = _select(positions, scores, k, w)
        self.cut = None
        return kept

    def _evict(self, caches, whole_model):
        if self.trap == "bf16_scores":
            for cache in caches:
                cache.score = [to_bf16(s) for s in cache.score]
        super()._evict(caches, whole_model)

    def _quest_pages(self, layer, q, pos):
        self.cut = -(-self.k // oracle.PAGE)
        pages = super()._quest_pages(layer, q, pos)
        self.cut = None
        return pages

    def prefill(self, ids):
        logits = super().prefill(ids)
        self.kept_after_prompt = oracle.s_kept(self)
        return logits

    def _count_step(self, step, tokens):
        self.evicted = False
        logits = step(tokens)
        self.evicting_steps += self.evicted
        return logits


class Recorder(_Observed, _Session):
    def _note_margin(self, logits):
        second, first = np.partition(logits, -2)[-2:]
        self.min_margin = min(self.min_margin, first - second)
        return logits

    def prefill(self, ids):
        return self._note_margin(super().prefill(ids))

    def decode(self, token):
        return self._note_margin(self._count_step(super().decode, token))


class BeamRecorder(_Observed, _BeamSession):
    def decode_beams(self, tokens):
        return self._count_step(super().decode_beams, tokens)


class _ObservedNumpy:
    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def lexsort(keys):
        order = np.lexsort(keys)
        _Observed.last.note_ranking(-np.asarray(keys[-1])[order])
        return order


oracle.np = _ObservedNumpy()
oracle.select = lambda *args: _Observed.last.select(*args)
oracle.Session, oracle.BeamSession = Recorder, BeamRecorder


def run(model, case, trap=None):
    """-> (outcome as cases.json has it, but for the form of kept sets; the session)."""
    _Observed.trap = trap
    policy = oracle.Policy(**case["policy"])
    if "beam" in case:
        b = case["beam"]
        beams, kept = oracle.beam_search(model, policy, case["prompt"], case["max_new"], b["width"], b["length_penalty"],
                                         b["early_stopping"], case["ignore_eos"])
        result = {"k": int(_Observed.last.k), "beams": [{"score": round(score, 7), "tokens": tokens} for score, tokens in beams],
                  "kept_after_prompt": _Observed.last.kept_after_prompt, "kept_at_end": kept}
    else:
        result = oracle.generate(model, policy, case["prompt"], case["max_new"], case.get("forced"), case["ignore_eos"],
                                 case.get("stream", 0))
        del result["scores_at_end"], result["w"]
        result["logprobs"] = [round(x, 7) for x in result["logprobs"]]
    session = _Observed.last
    return {**result, "seen": session.next_pos}, session
