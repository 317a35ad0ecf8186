"""What of tools/calibrate/descend needs Python alone."""

import json
import pathlib
import random
import tempfile
import unittest

from tools.calibrate.descend import order, probes, profile_file, shares


def selected(scores, k, w):
    """What SPEC's selection keeps, said once more: the last w, and of the
    others the k - w highest, ties to the earlier."""
    older = len(scores) - w
    best = sorted(range(older), key=lambda key: (-scores[key], key))[:k - w]
    return set(best) | set(range(older, len(scores)))


class OrderTest(unittest.TestCase):
    def test_least_budgets_tell_every_cut(self):
        draw = random.Random(1)
        for recent_ratio in (0.0, 0.3, 0.5, 1.0):
            for n in (1, 2, 7, 40):
                # Few values: ties are frequent.
                scores = [draw.randrange(5) for _ in range(n)]
                least = order.least_budgets(scores, recent_ratio)
                for k in range(1, n + 1):
                    kept = {key for key in range(n) if least[key] <= k}
                    self.assertEqual(
                        kept, selected(scores, k,
                                       order.recent(k, recent_ratio)),
                        (recent_ratio, n, k, scores))

    def test_layer_budgets_follow_the_servers_sizes(self):
        self.assertEqual(order.layer_budgets([1, 0.5, 0, 3], 0.5, 101, 8),
                         [50, 25, 1, 109])
        # 0.29 x 100 is 28.999... in double.
        self.assertEqual(order.layer_budgets([1], 0.29, 100, 2), [29])


class SharesTest(unittest.TestCase):
    def test_projection_keeps_mean_and_limits(self):
        draw = random.Random(2)
        for _ in range(50):
            found = shares.projected([draw.uniform(-1, 2) for _ in range(30)],
                                     0.5, 0.1)
            self.assertAlmostEqual(sum(found) / 30, 0.5, 9)
            self.assertGreaterEqual(min(found), 0.1)
            self.assertLessEqual(max(found), 1.0)

    def test_projection_leaves_what_fits(self):
        for a, b in zip(shares.projected([0.2, 0.8], 0.5, 0.1), [0.2, 0.8]):
            self.assertAlmostEqual(a, b, 9)

    def test_descent_finds_the_least_of_a_bowl(self):
        # The sum of (share - best)^2, steep in one layer; the best is feasible.
        best, steep = [0.9, 0.2, 0.3, 0.6], [30, 1, 1, 3]
        path = shares.Descent([0.5] * 4, 0.5, 0.1)
        for step in range(400):
            slopes = [2 * s * (share - b) for s, share, b
                      in zip(steep, path.shares, best)]
            path.step(slopes, 0.05 * 0.985 ** step)
            self.assertAlmostEqual(sum(path.shares), 2.0, 6)
        for share, b in zip(path.shares, best):
            self.assertAlmostEqual(share, b, 1)

    def test_descent_goes_to_the_limits_and_no_further(self):
        path = shares.Descent([0.5] * 4, 0.5, 0.1)
        for _ in range(60):
            path.step([-9.0, 3.0, 2.0, 1.0], 0.1)
        self.assertAlmostEqual(path.shares[0], 1.0)
        self.assertAlmostEqual(path.shares[1], 0.1)
        self.assertAlmostEqual(sum(path.shares), 2.0)

    def test_slopes_alike_move_nothing(self):
        path = shares.Descent([0.3, 0.7], 0.5, 0.1)
        before = path.shares
        path.step([2.0, 2.0], 0.1)
        self.assertEqual(path.shares, before)

    def test_rounded_weights_have_mean_one(self):
        draw = random.Random(3)
        found = [draw.uniform(0.1, 1) for _ in range(30)]
        weights = shares.rounded_weights(found)
        self.assertEqual(round(sum(weights) * 1000), 30000)
        for weight, share in zip(weights, found):
            self.assertAlmostEqual(weight, share * 30 / sum(found), delta=1e-3)


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "file.json"

    def test_a_profile_is_added_and_the_others_stay(self):
        profile_file.write(self.path, "a", [1.0, 1.0], {"model": "m"})
        profile_file.write(self.path, "b", [0.5, 1.5], {})
        file = json.loads(self.path.read_text())
        self.assertEqual(file["profiles"]["a"]["evidence"], {"model": "m"})
        self.assertEqual(file["profiles"]["b"]["weights"], [0.5, 1.5])

    def test_another_file_is_not_overwritten(self):
        for content in ("[]", "{}", "no json"):
            self.path.write_text(content)
            with self.assertRaisesRegex(ValueError, "file.json"):
                profile_file.write(self.path, "a", [1.0], {})
            self.assertEqual(self.path.read_text(), content)

    def probes_of(self, probes_list):
        self.path.write_text(json.dumps({"model": "m", "texts": "t",
                                         "probes": probes_list}))
        return probes.load(self.path, vocabulary=10)

    def test_probes_are_read(self):
        fact = {"kind": "fact", "prompt": [1], "forced": [2, 9]}
        text = {"kind": "text", "prompt": [1, 2], "forced": [0, 1, 2]}
        found = self.probes_of([fact, text])
        self.assertEqual(found.of("text")[0].forced, [0, 1, 2])
        self.assertEqual((found.model, found.texts), ("m", "t"))

    def test_bad_probes_are_named(self):
        text = {"kind": "text", "prompt": [1, 2], "forced": [0, 1, 2]}
        good = {"kind": "fact", "prompt": [1], "forced": [2, 9]}
        for bad, said in (
                ({**good, "prompt": []}, 'probe 0: "prompt"'),
                ({**good, "forced": [1]}, 'probe 0: "forced"'),
                ({**good, "forced": [1, 10]}, "below 10"),
                ({**good, "forced": [1, -1]}, "below 10"),
                ({**good, "kind": "x"}, "kind"),
                ({}, "not a file of probes"),
                (text, "no probe of kind fact")):
            with self.assertRaisesRegex(ValueError, said):
                self.probes_of([bad, text])


if __name__ == "__main__":
    unittest.main()
