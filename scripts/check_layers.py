#!/usr/bin/env python3
"""Checks that dependencies go down and that files stay small.

server -> engine -> kernels -> kernels/core, never back; gRPC and proto only in
server/, tools/, proto/ and the tests of those. Prints file:line of each fault;
exit code 1 if there is any. Usage: check_layers.py [ROOT]
"""

import pathlib
import re
import subprocess
import sys

MAX_LINES = 500
MAX_COLUMNS = 80
CODE = {".h", ".cc", ".cu", ".cuh"}
LIMITED = CODE | {".py", ".sh"}

# Kept byte for byte as the specification's authors wrote it.
FOREIGN = {"tests/oracle/keyformer_oracle.py"}

# Folder (longest match wins) -> what its files may include of the project.
ALLOWED = {
    "kernels/core": ["kernels/core"],
    "kernels": ["kernels"],
    "engine": ["engine", "kernels"],
    "server": ["server", "engine", "kernels", "keyformer/v1"],
    "tools": ["tools", "kernels/core", "keyformer/v1"],
    # The simulator drives the engine's own scheduler, and sees no wire.
    "tools/sim": ["tools", "engine", "kernels"],
    "tests/testing": ["tests/testing", "engine", "kernels"],
    "tests/kernels": ["tests/kernels", "tests/testing", "kernels"],
    "tests/bench": ["tests", "engine", "kernels"],
    "tests/engine": ["tests", "engine", "kernels"],
    "tests/golden": ["tests", "engine", "kernels"],
    "tests/tools": ["tests", "tools", "kernels/core", "keyformer/v1"],
    "tests/tools/sim": ["tests", "tools", "engine", "kernels"],
    "tests": ["tests", "server", "engine", "kernels", "keyformer/v1", "tools"],
}
# Only these may see the wire.
WIRE = ("server/", "tools/", "proto/", "tests/server/", "tests/e2e/",
        "tests/tools/", "tests/fuzz/")
WIRE_HEADER = re.compile(r"(grpc|google/protobuf|.*\.pb\.h)")
PROJECT = ("kernels/", "engine/", "server/", "tools/", "tests/", "keyformer/v1")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# Spelled so that this line does not match itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def allowed_for(path: str):
    best = ""
    for folder in ALLOWED:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return ALLOWED.get(best)


def include_fault(path: str, header: str):
    if WIRE_HEADER.match(header) and not path.startswith(WIRE):
        return f"includes {header}: gRPC and proto stay in server/ and tools/"
    allowed = allowed_for(path)
    if allowed is None or not header.startswith(PROJECT):
        return None
    if any(header.startswith(folder + "/") for folder in allowed):
        return None
    return f"includes {header}: only {', '.join(allowed)} may be used here"


def faults_of(root: pathlib.Path, name: str):
    path = root / name
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix in LIMITED and len(lines) >= MAX_LINES:
        yield f"{name}:{len(lines)}: {len(lines)} lines, want < {MAX_LINES}"
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished work is an issue, not a comment"
        if path.suffix not in CODE:
            continue
        if len(line) > MAX_COLUMNS and "http" not in line and '"' not in line:
            yield f"{name}:{number}: {len(line)} columns, want <= {MAX_COLUMNS}"
        match = INCLUDE.match(line)
        if match:
            fault = include_fault(name, match.group(1))
            if fault:
                yield f"{name}:{number}: {fault}"


def main() -> int:
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    tracked = subprocess.run(["git", "-C", str(root), "ls-files", "-z"],
                             check=True, capture_output=True, text=True)
    names = [n for n in tracked.stdout.split("\0") if n and (root / n).is_file()]
    checked = [n for n in names
               if pathlib.Path(n).suffix in LIMITED and n not in FOREIGN]
    faults = [f for name in checked for f in faults_of(root, name)]
    for fault in faults:
        print(fault)
    print(f"check_layers: {len(checked)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
