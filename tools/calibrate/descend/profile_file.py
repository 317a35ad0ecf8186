"""Writes a layer profile into the file beside a model."""

import json
import os
import pathlib


def read(path) -> dict:
    """{"profiles": {...}}, of a file that may not be there; ValueError if it is
    something else."""
    path = pathlib.Path(path)
    if not path.exists():
        return {"profiles": {}}
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(file, dict) or not isinstance(file.get("profiles"), dict):
        raise ValueError(f'{path} is there and has no "profiles" object')
    return file


def write(path, name: str, weights: list, evidence: dict) -> None:
    """Adds the profile or replaces it; the file's others stay."""
    file = read(path)
    file["profiles"][name] = {"weights": weights, "evidence": evidence}
    # A reader sees the old file or the new one.
    scratch = f"{path}.part"
    pathlib.Path(scratch).write_text(json.dumps(file, indent=1) + "\n",
                                     encoding="utf-8")
    os.replace(scratch, path)
