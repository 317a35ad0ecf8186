"""ROUGE-1, -2 and -L as F1 (Lin, 2004), without stemming or stop words.

Words are runs of lower-cased ASCII letters and digits, as in the rouge_score
package; ROUGE-L is over the whole text (its "rougeL", not "rougeLsum").
"""

import collections
import re

_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list:
    return _WORD.findall(text.lower())


def f1(matches: int, candidate: int, reference: int) -> float:
    if matches == 0:
        return 0.0
    precision = matches / candidate
    recall = matches / reference
    return 2 * precision * recall / (precision + recall)


def ngrams(tokens: list, n: int) -> collections.Counter:
    return collections.Counter(
        tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1))


def rouge_n(candidate: str, reference: str, n: int) -> float:
    ours, theirs = ngrams(words(candidate), n), ngrams(words(reference), n)
    matches = sum((ours & theirs).values())
    return f1(matches, sum(ours.values()), sum(theirs.values()))


def longest_common_subsequence(a: list, b: list) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            above = row[j]
            row[j] = previous + 1 if x == y else max(above, row[j - 1])
            previous = above
    return row[-1]


def rouge_l(candidate: str, reference: str) -> float:
    ours, theirs = words(candidate), words(reference)
    matches = longest_common_subsequence(ours, theirs)
    return f1(matches, len(ours), len(theirs))


def rouge(candidate: str, reference: str) -> dict:
    return {"rouge1": rouge_n(candidate, reference, 1),
            "rouge2": rouge_n(candidate, reference, 2),
            "rougeL": rouge_l(candidate, reference)}
