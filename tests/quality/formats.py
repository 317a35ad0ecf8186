"""Checks of a generated text: loops, and whether it kept the format asked for."""

import json
import re


def repeated_share(text: str, n: int = 4) -> float:
    """The share of n-grams of words that occurred before in the text: 0 for a
    text without repetition, towards 1 for a loop."""
    tokens = text.lower().split()
    grams = [tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1)]
    if not grams:
        return 0.0
    return 1 - len(set(grams)) / len(grams)


def loops(text: str, tail_words: int = 200) -> bool:
    """Whether the text's end goes round in circles: most of the 4-grams of its
    last `tail_words` words are repeats within them."""
    tail = " ".join(text.split()[-tail_words:])
    return len(tail.split()) >= 40 and repeated_share(tail) > 0.5


def list_items(text: str) -> int:
    """How far a numbered list counts: 1, 2, 3 ... at the starts of lines."""
    count = 0
    for number in re.findall(r"(?m)^\s*(?:\*\*)?(\d{1,3})[.)]", text):
        if int(number) == count + 1:
            count += 1
    return count


def first_json(text: str):
    """The first JSON object or array in the text, fenced or not; else None."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"[\[{]", text):
        try:
            return decoder.raw_decode(text, match.start())[0]
        except ValueError:
            continue
        except RecursionError:
            return None
    return None


def keeps(check: dict, text: str) -> bool:
    """Whether `text` does what `check` wants of it:
    {"list": N}        a numbered list of exactly N items,
    {"json": [keys]}   a JSON object (or an array of them) with these keys,
    {"words": [a, b]}  between a and b words,
    {"lines": N}       N lines that are not empty,
    {"contains": [..]} each of these, whatever the case."""
    kind, want = next(iter(check.items()))
    if kind == "list":
        return list_items(text) == want
    if kind == "json":
        found = first_json(text)
        if isinstance(found, list):
            found = found[0] if found else None
        return isinstance(found, dict) and all(key in found for key in want)
    if kind == "words":
        return want[0] <= len(text.split()) <= want[1]
    if kind == "lines":
        return len([line for line in text.splitlines()
                    if line.strip()]) == want
    if kind == "contains":
        return all(part.lower() in text.lower() for part in want)
    raise ValueError(f"unknown check: {kind}")
