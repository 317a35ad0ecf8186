"""Reads the test texts. tests/quality/data/README.md says where they are from."""

import json
import pathlib
import random

BUNDLED = pathlib.Path(__file__).resolve().parent / "data"
_KEYS = ("anchor", "basalt", "candle", "dagger", "engine", "falcon", "garnet",
         "hammer", "island", "jacket", "kernel", "ladder", "magnet", "needle",
         "orchid", "pebble", "quartz", "ribbon", "signal", "turbine")


class Texts:
    """Rows of the data folder's .jsonl files, read once."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._rows = {}

    def has(self, name: str) -> bool:
        return (self._folder / f"{name}.jsonl").exists()

    def rows(self, name: str) -> list:
        if name not in self._rows:
            path = self._folder / f"{name}.jsonl"
            with open(path, encoding="utf-8") as lines:
                self._rows[name] = [json.loads(line) for line in lines]
        return self._rows[name]

    def long_texts(self) -> list:
        """(name, text) of every text that likelihoods are measured on."""
        found = [(row["id"], row["text"])
                 for row in self.rows("long_public_domain")]
        found += [(f"govreport-{i}", row["document"])
                  for i, row in enumerate(self.rows("govreport"))]
        if self.has("wikitext2_test_long"):
            found += [(f"wikitext-{row['id']}", row["text"])
                      for row in self.rows("wikitext2_test_long")]
        return found

    def needles(self, lengths, made: int) -> list:
        """Rows of the file with these lengths, and `made` more in its manner:
        (name, prompt, answer)."""
        rows = [row for row in self.rows("needle_pd")
                if row["length"] in lengths]
        rows += [make_needle(i, self.rows("long_public_domain"))
                 for i in range(made)]
        return [(f"{row['kind']}-{row['length']}-{row['depth']}-"
                 f"{row['answer']}",
                 f"{row['context']}\n\n{row['question']} "
                 f"{row['answer_prefix']}", row["answer"]) for row in rows]


def needle(key: str, number: int) -> str:
    return f"One of the special magic numbers for {key} is: {number}."


def make_needle(index: int, sources: list) -> dict:
    """A row as in needle_pd: paragraphs of public-domain text, a fact at one of
    five depths; every second row has three other facts (multikey)."""
    draw = random.Random(1000 + index)
    length = (512, 768, 1024)[index % 3]
    depth = (0, 0.25, 0.5, 0.75, 1)[index % 5]
    multikey = index % 2 == 1
    paragraphs = [p for p in sources[index % len(sources)]["text"].split("\n")
                  if 80 <= len(p) <= 1200]
    draw.shuffle(paragraphs)
    filler, size = [], 0
    for paragraph in paragraphs:
        if size > length * 3.6:  # characters; about 4 a token, less the facts
            break
        filler.append(paragraph.strip())
        size += len(paragraph)
    keys = draw.sample(_KEYS, 4)
    numbers = [draw.randrange(1000000, 10000000) for _ in keys]
    facts = [needle(k, n) for k, n in zip(keys, numbers)]
    if multikey:
        for fact in facts[1:]:
            filler.insert(draw.randrange(len(filler) + 1), fact)
    filler.insert(round(depth * len(filler)), facts[0])
    return {
        "kind": "multikey" if multikey else "single", "length": length,
        "depth": depth, "context": "\n\n".join(filler),
        "question": f"What is the special magic number for {keys[0]} mentioned "
                    "in the text?",
        "answer_prefix": f"The special magic number for {keys[0]} mentioned in "
                         "the text is",
        "answer": str(numbers[0])}
