"""tools/calibrate/descend against the oracle, on tiny models.

    VENV/bin/python -m unittest tests.tools.descend.model_test

Needs the packages of tools/calibrate/descend/requirements.txt and fails without
them; `scripts/test.sh` runs plain_test alone.
"""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import numpy as np

from tests.oracle import keyformer_oracle as oracle
from tests.tools.descend import tiny_model
from tools.calibrate.descend import (__main__ as command, batches, cut, model,
                                     order, probes)

MODELS = (
    dict(seed=1),
    dict(seed=2, layers=2, heads=4, kv_heads=4, head_dim=8, tied=True),
    dict(seed=3, heads=6, kv_heads=1, head_dim=10, rotary_dim=6),
)


def draw_probes(seed, kind="text", lengths=((40, 9), (57, 12), (30, 12))):
    draw = np.random.default_rng(seed)
    ids = lambda count: draw.integers(0, tiny_model.VOCABULARY, count).tolist()
    return [probes.Probe(kind, ids(n), ids(t)) for n, t in lengths]


class TinyModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.paths = []
        for number, shape in enumerate(MODELS):
            cls.paths.append(cls.folder / f"{number}.gguf")
            tiny_model.write(cls.paths[-1], **shape)


class HardTest(TinyModels):
    def compare(self, path, weights, ratio, recent_ratio, score_queries):
        """The largest difference of a forced token's log-likelihood."""
        ours, theirs = model.load(path), oracle.Llama(str(path))
        found = draw_probes(7)
        computed, = batches.compute(ours, found, score_queries, recent_ratio)
        sizes = [(len(p.prompt), len(p.forced)) for p in found]
        k_l = [order.layer_budgets(weights, ratio, n, t) for n, t in sizes]
        w_l = [[order.recent(k, recent_ratio) for k in row] for row in k_l]
        likelihoods = np.asarray(cut.hard_losses(
            ours, np.array(k_l, np.int32).T, np.array(w_l, np.int32).T,
            computed.batch)[2])
        worst = 0.0
        for row, probe in enumerate(found):
            policy = oracle.Policy(
                ratio=ratio, recent=recent_ratio, noise="none",
                score_queries=score_queries, layer_weights=tuple(weights))
            said = oracle.generate(theirs, policy, probe.prompt, 0,
                                   forced=probe.forced)["logprobs"]
            for step, token in enumerate(probe.forced[1:]):
                worst = max(worst, abs(likelihoods[row, step, token]
                                       - said[step + 1]))
        return worst

    def test_the_hard_cut_is_the_oracles(self):
        for path, shape in zip(self.paths, MODELS):
            layers = shape.get("layers", 3)
            uneven = [0.4, 1.6, 1.0][:layers]
            uneven = [w * layers / sum(uneven) for w in uneven]
            for weights in ([1.0] * layers, uneven):
                for ratio, recent, queries in ((0.5, 0.3, 16), (0.3, 0.5, 0),
                                               (0.6, 0.0, 256), (0.4, 1.0, 8)):
                    with self.subTest(model=path.name, weights=weights,
                                      ratio=ratio, recent=recent):
                        self.assertLess(self.compare(path, weights, ratio,
                                                     recent, queries), 1e-3)

    def test_the_comparison_sees_another_cut(self):
        # Windows half as long as the oracle's.
        self.addCleanup(setattr, order, "recent", order.recent)
        order.recent = lambda k, ratio: int(ratio * k) // 2
        self.assertGreater(
            self.compare(self.paths[0], [1.0] * 3, 0.4, 0.5, 16), 1e-2)


class SoftTest(TinyModels):
    def setUp(self):
        self.model = model.load(self.paths[0])

    def test_a_narrow_soft_cut_is_the_hard_one(self):
        # One fed token: nothing is evicted while decoding.
        lengths = ((40, 2), (40, 2))
        found = (draw_probes(5, "fact", lengths)
                 + draw_probes(6, "text", lengths))
        computed = batches.compute(self.model, found, 16, 0.3)
        shares = [0.25, 0.8, 0.45]
        hard = batches.measure(self.model, computed,
                               [share / 0.5 for share in shares], 0.5, 0.3)
        soft, _ = batches.slopes(self.model, computed, shares, 1e-4, 5.0)
        self.assertAlmostEqual(soft.fact_nll, hard.fact_nll, 3)
        self.assertAlmostEqual(soft.text_divergence, hard.text_divergence, 3)
        self.assertGreater(hard.text_divergence, 0.01)

    def test_slopes_are_those_of_the_loss(self):
        found = draw_probes(5, "fact") + draw_probes(6, "text")
        computed = batches.compute(self.model, found, 16, 0.3)
        shares = [0.4, 0.6, 0.5]

        def total(values):
            return batches.slopes(self.model, computed, values, 0.1,
                                  5.0)[0].total(5.0)
        _, slopes = batches.slopes(self.model, computed, shares, 0.1, 5.0)
        self.assertGreater(max(map(abs, slopes)), 0.05)
        for layer, slope in enumerate(slopes):
            step = 0.02
            up, down = list(shares), list(shares)
            up[layer] += step
            down[layer] -= step
            self.assertAlmostEqual((total(up) - total(down)) / (2 * step),
                                   slope, delta=0.03 * abs(slope) + 0.01)

    def test_with_everything_kept_texts_diverge_by_nothing(self):
        found = draw_probes(5, "fact") + draw_probes(6, "text")
        computed = batches.compute(self.model, found, 16, 0.3)
        whole = batches.measure(self.model, computed, None, 1.0, 0.3)
        self.assertAlmostEqual(whole.text_divergence, 0.0, 5)
        cut_down = batches.measure(self.model, computed, [1.0] * 3, 0.3, 0.3)
        self.assertGreater(cut_down.text_divergence, 0.01)


class LoadTest(TinyModels):
    def test_what_would_be_computed_wrongly_is_refused(self):
        path = self.folder / "refused.gguf"
        for changes, said in (
                (dict(architecture="gemma"), "architecture gemma"),
                (dict(extra=(("llama.rope.scaling.type", "yarn"),)), "rotary"),
                (dict(extra=(("llama.expert_count", 8),)), "expert_count")):
            tiny_model.write(path, **changes)
            with self.assertRaisesRegex(model.Unsupported, said):
                model.load(path)


class CommandTest(TinyModels):
    def run_command(self, out, *flags):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = command.main([
                "--model", str(self.paths[0]), "--probes",
                str(self.folder / "probes.json"), "--out", str(out),
                "--steps", "6", "--score_queries", "16", *flags])
        return code, said.getvalue()

    def test_it_lowers_the_loss_and_gives_the_same_again(self):
        found = draw_probes(5, "fact") + draw_probes(6, "text")
        (self.folder / "probes.json").write_text(json.dumps({
            "model": "tiny", "texts": "none",
            "probes": [vars(probe) for probe in found]}))
        outs = [self.folder / "a.json", self.folder / "b.json"]
        for out in outs:
            code, said = self.run_command(out)
            self.assertEqual(code, 0, said)
        profile, again = (json.loads(out.read_text())["profiles"]["calibrated"]
                          for out in outs)
        self.assertEqual(profile["weights"], again["weights"])
        self.assertAlmostEqual(sum(profile["weights"]), 3.0, 6)
        loss = lambda name: (profile["evidence"][name]["fact_nll"] + 5
                             * profile["evidence"][name]["text_divergence"])
        self.assertLess(loss("this_profile"), loss("uniform"))
        code, said = self.run_command(outs[0], "--memory_gib", "0.0001")
        self.assertEqual(code, 1)
        self.assertIn("--memory_gib", said)


if __name__ == "__main__":
    unittest.main()
