"""Resuming a run, the runner's bookkeeping, and what tables are made of."""

import io
import json
import pathlib
import tempfile
import time
import unittest

from tests.quality import (ablations, choices, grid, nll, runner, settings,
                           sizes, store, svg, table, texts, wire)


class FakeClient:
    """Answers with the prompt; says no to the policies named."""

    def __init__(self, missing=(), broken=()):
        self.calls = []
        self._missing = missing
        self._broken = broken

    def generate(self, request):
        self.calls.append(request)
        if request["cache"]["policy"] in self._missing:
            raise wire.NotOffered("UNIMPLEMENTED: not here")
        if request["text"] in self._broken:
            raise wire.Refused("INTERNAL: broken")
        return {"sequences": [{"text": request["text"]}], "prompt_tokens": 10,
                "generated_tokens": 3, "evicted_tokens": 6}


def run(client, path, model, jobs, **options):
    answers = runner.Runner(client, store.Store(path), model,
                            stream=io.StringIO(), **options)
    answers.run(jobs)
    return answers


def job(text, setting=settings.FULL):
    return runner.Job("task", text, setting,
                      {"text": text, "cache": setting.cache}, 1.0)


class StoreTest(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name) / "results.jsonl"

    def test_a_second_run_asks_nothing_again(self):
        jobs = [job("a"), job("b"), job("a")]
        client = FakeClient()
        run(client, self.path, {"m": 1}, jobs)
        self.assertEqual(len(client.calls), 2)
        again = FakeClient()
        rerun = run(again, self.path, {"m": 1}, jobs + [job("c")])
        self.assertEqual([c["text"] for c in again.calls], ["c"])
        self.assertEqual(rerun.answer(jobs[0])["sequences"][0]["text"], "a")

    def test_another_model_is_asked_again(self):
        run(FakeClient(), self.path, {"m": 1}, [job("a")])
        client = FakeClient()
        run(client, self.path, {"m": 2}, [job("a")])
        self.assertEqual(len(client.calls), 1)

    def test_a_line_cut_off_by_a_crash_is_asked_again(self):
        run(FakeClient(), self.path, {}, [job("a"), job("b")])
        whole = self.path.read_text()
        self.path.write_text(whole[:-9])
        client = FakeClient()
        run(client, self.path, {}, [job("a"), job("b")])
        self.assertEqual(len(client.calls), 1)
        self.assertEqual(len(store.Store(self.path)), 2)

    def test_keys_do_not_hang_on_the_order_of_fields(self):
        self.assertEqual(store.request_key({"a": 1, "b": 2}, {}),
                         store.request_key({"b": 2, "a": 1}, {}))
        self.assertNotEqual(store.request_key({"a": 1}, {}),
                            store.request_key({"a": 2}, {}))

    def test_what_a_server_does_not_have_is_told_and_not_kept(self):
        quest = settings.policy("quest", 0.5)
        answers = run(
            FakeClient(missing=("CACHE_POLICY_QUEST",), broken=("b",)),
            self.path, {}, [job("a", quest), job("a"), job("b")])
        self.assertEqual(list(answers.not_offered), ["task: quest"])
        self.assertEqual(list(answers.refused), ["task/b/full"])
        self.assertEqual(len(store.Store(self.path)), 1)

    def test_what_one_task_is_refused_another_may_have(self):
        client = FakeClient(missing=("beams",))
        beams = runner.Job("beams", "a", settings.FULL,
                           {"text": "a", "cache": {"policy": "beams"}}, 1.0)
        answers = run(client, self.path, {}, [beams, job("b")], streams=1)
        self.assertEqual(list(answers.not_offered), ["beams: full"])
        self.assertIsNotNone(answers.answer(job("b")))

    def test_verifying_finds_answers_that_have_changed(self):
        jobs = [job(text) for text in "abcdef"]
        answers = run(FakeClient(), self.path, {}, jobs)
        self.assertEqual(answers.verify(jobs, 3), (3, []))
        self.assertEqual(answers.verify(jobs + [job("new")], 100), (6, []))
        answers._store.put(answers.key(jobs[2]), "label", {"sequences": []})
        self.assertEqual(answers.verify(jobs, 100), (6, ["task/c/full"]))

    def test_no_request_starts_after_the_deadline(self):
        client = FakeClient()
        answers = run(client, self.path, {}, [job("a"), job("b")],
                      deadline=time.monotonic() - 1)
        self.assertEqual(client.calls, [])
        self.assertEqual(answers.left, 2)


class TablesTest(unittest.TestCase):

    def test_evicted_share_counts_fed_tokens(self):
        # 10 + 3 - 1 = 12 fed, 6 gone.
        self.assertEqual(grid.evicted_share(
            {"sequences": [{}], "prompt_tokens": 10, "generated_tokens": 3,
             "evicted_tokens": 6}), 0.5)
        self.assertEqual(grid.evicted_share(
            {"sequences": [{}], "prompt_tokens": 1, "generated_tokens": 0,
             "evicted_tokens": 0}), 0.0)

    def test_rows_where_nothing_was_evicted_are_marked(self):
        self.assertEqual(table.evicted(0.0), "0 % †")
        self.assertEqual(table.evicted(0.5), "50 %")

    def test_likelihoods_leave_the_first_token_out(self):
        answer = {"sequences": [{"logprobs": [-9.0, -1.0, -3.0],
                                 "best": [7, 1, 2]}]}
        other = {"sequences": [{"logprobs": [-9.0, -1.0, -3.0],
                                "best": [8, 1, 3]}]}
        self.assertEqual(nll.tokens_nll(answer), 2.0)
        self.assertEqual(nll.agreement(answer, other), 0.5)

    def test_the_likelier_choice_is_picked(self):
        def answer(*logprobs):
            return {"sequences": [{"logprobs": list(logprobs)}]}
        self.assertEqual(choices.picks({
            "x-0": answer(-1.0, -1.0), "x-1": answer(-1.5),
            "y-0": answer(-1.0), "y-1": answer(-2.0),
            "z-0": answer(-1.0)}), {"x": 1, "y": 0})

    def test_ablations_say_where_the_paper_is_not_borne_out(self):
        group = ablations.Group("Noise", "a best", (("a", {}), ("b", {})),
                                ("a",))
        lower = {str(i): 1.0 + 0.1 * i for i in range(8)}
        higher = {item: nll + 0.5 for item, nll in lower.items()}
        mixed = {item: nll + (0.5 if int(item) % 2 else -0.49)
                 for item, nll in lower.items()}
        self.assertIn("The same direction",
                      ablations.verdict(group, {"a": lower, "b": higher}))
        self.assertIn("not the paper's direction",
                      ablations.verdict(group, {"a": higher, "b": lower}))
        self.assertIn("not told apart",
                      ablations.verdict(group, {"a": mixed, "b": lower}))
        # Only what both have is compared.
        self.assertIn("The same direction", ablations.verdict(
            group, {"a": {**lower, "9": 99.0}, "b": higher}))
        self.assertEqual(ablations.verdict(group, {"a": lower}),
                         "Paper: a best.")

    def test_tables_and_plots(self):
        found = table.Table("T", ["a", "b"], [[1, 2]], "note").markdown()
        self.assertIn("| a | b |\n|---|---|\n| 1 | 2 |\n\nnote", found)
        picture = svg.plot({"a<b": [(0.2, 1.0, 0.9, 1.1), (0.5, 0, 0, 0)]},
                           title="t", x_label="x", y_label="y")
        self.assertIn("a&lt;b", picture)
        self.assertEqual(svg.plot({}, title="", x_label="", y_label=""), "")
        self.assertEqual(svg.ticks(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1.0])


class TextsTest(unittest.TestCase):

    def test_bundled_texts_fill_every_size(self):
        found = texts.Texts(texts.BUNDLED)
        for size in sizes.BY_NAME.values():
            items = found.needles(size.needle_file_lengths, size.needles_made)
            self.assertEqual(len({name for name, _, _ in items}), len(items))
            for _, prompt, answer in items:
                self.assertEqual(prompt.count(answer), 1)
            self.assertLessEqual(size.reports, len(found.rows("govreport")))

    def test_every_setting_has_a_cache_of_its_own(self):
        found = [settings.policy(name, budget) for name in settings.POLICIES
                 for budget in (0.2, 0.5)]
        keys = {json.dumps(s.cache, sort_keys=True) for s in found}
        self.assertEqual(len(keys), len(found))
        profiled = settings.profiled("p", (1.5, 0.5), 0.5)
        self.assertEqual(profiled.cache["layer_weights"], [1.5, 0.5])
        self.assertNotIn("layer_profile", profiled.cache)


if __name__ == "__main__":
    unittest.main()
