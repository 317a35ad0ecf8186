"""The harness' arithmetic, against values worked out by hand."""

import unittest

from tests.quality import formats, intervals, needles, rouge


class RougeTest(unittest.TestCase):

    def test_words_are_lower_case_runs_of_letters_and_digits(self):
        self.assertEqual(rouge.words("The F-16's 2 engines."),
                         ["the", "f", "16", "s", "2", "engines"])

    def test_counts_matches_once(self):
        # 2 of 4 candidate words and 2 of 3 reference words match.
        self.assertAlmostEqual(rouge.rouge_n("the the the cat", "the cat sat",
                                             1), 2 * 0.5 * (2 / 3) / (7 / 6))

    def test_bigrams(self):
        self.assertAlmostEqual(rouge.rouge_n("the cat sat", "the cat ran", 2),
                               0.5)

    def test_longest_common_subsequence_keeps_order(self):
        # police killed the gunman / the gunman police killed: length 2.
        self.assertAlmostEqual(
            rouge.rouge_l("the gunman police killed",
                          "police killed the gunman"), 0.5)
        self.assertAlmostEqual(
            rouge.rouge_l("police kill the gunman",
                          "police killed the gunman"), 0.75)

    def test_extremes(self):
        self.assertEqual(rouge.rouge("same text", "same text"),
                         {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0})
        self.assertEqual(rouge.rouge("", "text")["rougeL"], 0.0)
        self.assertEqual(rouge.rouge_n("one", "one", 2), 0.0)


class IntervalsTest(unittest.TestCase):

    def test_wilson(self):
        low, high = intervals.wilson(8, 10)
        self.assertAlmostEqual(low, 0.4902, places=3)
        self.assertAlmostEqual(high, 0.9433, places=3)
        self.assertEqual(intervals.wilson(0, 10)[0], 0.0)
        self.assertAlmostEqual(intervals.wilson(0, 10)[1], 0.2775, places=3)
        self.assertEqual(intervals.wilson(0, 0), (0.0, 1.0))

    def test_bootstrap_holds_the_mean_and_repeats(self):
        values = [0.1 * i for i in range(20)]
        low, high = intervals.bootstrap_mean(values)
        self.assertLess(low, 0.95)
        self.assertGreater(high, 0.95)
        self.assertGreater(low, 0.5)
        self.assertEqual((low, high), intervals.bootstrap_mean(values))
        self.assertEqual(intervals.bootstrap_mean([]), (0.0, 0.0))
        self.assertEqual(intervals.bootstrap_mean([3.0]), (3.0, 3.0))

    def test_chance(self):
        self.assertFalse(intervals.excludes_chance(55, 100, 0.5))
        self.assertTrue(intervals.excludes_chance(65, 100, 0.5))


class FormatsTest(unittest.TestCase):

    def test_repeated_share(self):
        self.assertEqual(formats.repeated_share("a b c d e f"), 0.0)
        self.assertEqual(formats.repeated_share("a b"), 0.0)
        # 9 four-grams, 4 of them different.
        self.assertAlmostEqual(formats.repeated_share("a b c d " * 3),
                               1 - 4 / 9)

    def test_loops_reads_the_end(self):
        varied = " ".join(f"word{i}" for i in range(400))
        self.assertFalse(formats.loops(varied))
        self.assertTrue(formats.loops(varied + " and so on and on" * 60))
        self.assertFalse(formats.loops("and so on " * 60 + varied))
        self.assertFalse(formats.loops("too short too short"))

    def test_numbered_lists(self):
        self.assertEqual(formats.list_items("1. a\n2. b\n3) c"), 3)
        self.assertEqual(formats.list_items("Sure:\n 1. a\n\n**2.** b"), 2)
        self.assertEqual(formats.list_items("1. a\n1. b\n2. c"), 2)
        self.assertEqual(formats.list_items("2. a\n3. b"), 0)
        self.assertTrue(formats.keeps({"list": 2}, "1. a\n2. b"))
        self.assertFalse(formats.keeps({"list": 2}, "1. a\n2. b\n3. c"))

    def test_json(self):
        check = {"json": ["name", "age"]}
        self.assertTrue(formats.keeps(
            check, 'Here:\n```json\n{"name": "x", "age": 3}\n```'))
        self.assertTrue(formats.keeps(check, '[{"name": "x", "age": 3}]'))
        self.assertFalse(formats.keeps(check, '{"name": "x"}'))
        self.assertFalse(formats.keeps(check, '{"name": "x", "age": 3'))
        self.assertFalse(formats.keeps(check, "[]"))
        self.assertFalse(formats.keeps(check, "[" * 100000))

    def test_lengths(self):
        self.assertTrue(formats.keeps({"words": [2, 3]}, "one two three"))
        self.assertFalse(formats.keeps({"words": [2, 3]}, "one"))
        self.assertTrue(formats.keeps({"lines": 2}, "a\n\nb\n"))
        self.assertTrue(formats.keeps({"contains": ["Dear"]}, "dear Anna"))
        with self.assertRaises(ValueError):
            formats.keeps({"rhymes": 1}, "a")


class NeedlesTest(unittest.TestCase):

    def test_the_whole_number_counts(self):
        def right(text):
            return needles.right({"sequences": [{"text": text}]}, "1234567")
        self.assertTrue(right(" 1234567."))
        self.assertTrue(right("1234567"))
        self.assertFalse(right(" 1234568."))
        self.assertFalse(right(" 12345678."))
        self.assertFalse(right(" 01234567."))
        self.assertFalse(right(""))


if __name__ == "__main__":
    unittest.main()
