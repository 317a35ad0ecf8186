"""The file of probes that `keyformer-calibrate --probes_out` writes.

    {"model": "...", "texts": "...", "probes":
      [{"kind": "fact", "prompt": [ids], "forced": [ids]}, ...]}
"""

import dataclasses
import json
import pathlib

KINDS = ("fact", "text")


@dataclasses.dataclass(frozen=True)
class Probe:
    kind: str  # of KINDS
    prompt: list  # token ids, at least 1
    forced: list  # token ids, at least 2


@dataclasses.dataclass(frozen=True)
class ProbeFile:
    model: str
    texts: str
    probes: list

    def of(self, kind: str) -> list:
        return [probe for probe in self.probes if probe.kind == kind]


def _ids(entry: dict, name: str, least: int, vocabulary: int) -> list:
    ids = entry.get(name)
    if not isinstance(ids, list) or len(ids) < least or not all(
            isinstance(i, int) and 0 <= i < vocabulary for i in ids):
        raise ValueError(f'"{name}" is not a list of {least} or more token ids '
                         f"below {vocabulary}, the model's vocabulary")
    return ids


def load(path, vocabulary: int) -> ProbeFile:
    """ValueError says what is wrong; OSError where there is no such file."""
    try:
        file = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        entries = file["probes"]
        probes = []
        for number, entry in enumerate(entries):
            if entry["kind"] not in KINDS:
                raise ValueError(f'"kind" {entry["kind"]}: not one of {KINDS}')
            try:
                probes.append(Probe(entry["kind"],
                                    _ids(entry, "prompt", 1, vocabulary),
                                    _ids(entry, "forced", 2, vocabulary)))
            except ValueError as error:
                raise ValueError(f"probe {number}: {error}") from None
        found = ProbeFile(str(file.get("model", "")), str(file.get("texts", "")),
                          probes)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a file of probes ({error!r})") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for kind in KINDS:
        if not found.of(kind):
            raise ValueError(f"{path}: no probe of kind {kind}")
    return found
