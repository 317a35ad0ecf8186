"""Results on disk: a JSON line per answered request, keyed by what was asked.

A run that was stopped goes on where it ended, and two tasks that ask the same
share the answer. A key covers the whole request and the model, not the code of
the server: results of a server whose answers have changed are to be deleted.
"""

import hashlib
import json
import pathlib
import threading


def request_key(request: dict, model: dict) -> str:
    """`model`: what identifies the served model (names, sizes, dtypes)."""
    text = json.dumps([request, model], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Store:
    """Thread-safe. A line that was cut off by a crash is dropped."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._lock = threading.Lock()
        self._answers = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self._answers[record["key"]] = record["answer"]
            except (ValueError, KeyError, TypeError):
                continue
        if text and not text.endswith("\n"):
            with open(self._path, "a", encoding="utf-8") as out:
                out.write("\n")

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str):
        """The answer, or None."""
        return self._answers.get(key)

    def put(self, key: str, label: str, answer: dict) -> None:
        """`label` is for people who read the file."""
        line = json.dumps({"key": key, "label": label, "answer": answer},
                          ensure_ascii=False)
        with self._lock:
            self._answers[key] = answer
            with open(self._path, "a", encoding="utf-8") as out:
                out.write(line + "\n")
