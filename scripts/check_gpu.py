#!/usr/bin/env python3
"""Holds the compiled CUDA kernels to kernels/cuda/budgets.txt; needs no GPU.

Per kernel and architecture: registers, stack, shared memory, blocks a
multiprocessor can hold, and the instructions that must or must not be there.
Says so and ends with 0 where there is no nvcc.

  check_gpu.py                      build kf_cuda (preset cuda), then check it
  check_gpu.py --update             and write the table of the budgets anew
  check_gpu.py --objects a.o ...    these objects or cubins, as they are
  --budgets FILE                    in place of kernels/cuda/budgets.txt
"""

import argparse
import collections
import fnmatch
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# They read the binaries of nvcc 13.0, and no toolkit package has them.
TOOLS = ("nvidia-cuda-cuobjdump==13.2.51", "nvidia-cuda-nvdisasm==13.2.51")
ARCHS = ("sm_80", "sm_90")
TABLE = "# table"
SLACK = 1.10  # a budget that is further above what is used says nothing

# Of one multiprocessor: shared memory in bytes. 64 Ki registers, 2048 threads
# and 32 blocks are the same in both.
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_90": 228 * 1024}
RESERVED_SHARED = 1024  # a block, by the system; cuobjdump counts it on sm_90


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_gpu: {' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def round_up(value, to):
    return (value + to - 1) // to * to


def blocks_per_sm(arch, regs, shared, threads):
    """The occupancy rule of cuda_occupancy.h for sm_80 and sm_90."""
    warps = round_up(threads, 32) // 32
    by_threads = 64 // warps
    # Registers are given to warps in units of 256, to four partitions.
    warps_a_partition = 65536 // 4 // round_up(max(regs, 1) * 32, 256)
    by_regs = warps_a_partition * 4 // warps
    by_shared = SHARED_BYTES[arch] // round_up(shared + RESERVED_SHARED, 128)
    return min(by_threads, by_regs, by_shared, 32)


def tools():
    """cuobjdump, with nvdisasm beside it on the PATH."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME",
                                        pathlib.Path.home() / ".cache"))
    venv = cache / "keyformer" / "gpu-tools-13.2.51"
    found = list(venv.glob("lib/python*/site-packages/nvidia/cu13/bin"))
    if not found or not (found[0] / "cuobjdump").exists():
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/pip", "install", "--quiet",
            "--disable-pip-version-check", *TOOLS)
        found = list(venv.glob("lib/python*/site-packages/nvidia/cu13/bin"))
    os.environ["PATH"] = f"{found[0]}{os.pathsep}{os.environ['PATH']}"
    return found[0] / "cuobjdump"


def short_name(demangled):
    """`AttendKernel<64, bf16>` of a demangled function name."""
    match = re.search(r"(\w+)(<.*>)?\(", re.sub(r"\(anonymous namespace\)", "",
                                                demangled))
    name = match[1] + (match[2] or "") if match else demangled
    name = re.sub(r"kf::\w+::(_GLOBAL__N__\w+::)?", "", name)
    return name.replace("__nv_bfloat16", "bf16").replace(" ", "")


class Use:
    """What one kernel takes on one architecture."""

    def __init__(self):
        self.regs = self.stack = self.shared = 0
        self.threads = 1024
        self.mix = collections.Counter()


def read_objects(cuobjdump, objects):
    """{(kernel, arch): Use} of all objects."""
    raw = collections.defaultdict(Use)
    threads = {}
    for path in objects:
        for arch in ARCHS:
            name = None
            for line in run(cuobjdump, "--dump-resource-usage", "-arch", arch,
                            path).splitlines():
                if match := re.match(r"\s*Function (\S+):", line):
                    name = match[1]
                elif "REG:" in line and name:
                    use = raw[name, arch]
                    sizes = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", line))
                    use.regs, use.stack = int(sizes["REG"]), int(sizes["STACK"])
                    use.shared = int(sizes["SHARED"])
                    if arch == "sm_90":
                        use.shared = max(use.shared - RESERVED_SHARED, 0)
            for line in run(cuobjdump, "-sass", "-arch", arch,
                            path).splitlines():
                if match := re.match(r"\s*Function : (\S+)", line):
                    name = match[1]
                elif match := re.match(
                        r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?"
                        r"([A-Z][A-Z0-9_.]*)", line):
                    raw[name, arch].mix[match[1]] += 1
        entry = None
        for line in run(cuobjdump, "-ptx", path).splitlines():
            if match := re.match(r"\.?\s*(?:\.visible )?\.entry (\w+)", line):
                entry = match[1]
            elif match := re.match(r"\s*\.(?:max|req)ntid (\d+)", line):
                threads[entry] = int(match[1])
    names = sorted({name for name, _ in raw})
    demangled = run("c++filt", *names).splitlines() if names else []
    short = {n: short_name(d) for n, d in zip(names, demangled)}
    result = {}
    for (name, arch), use in raw.items():
        use.threads = threads.get(name, use.threads)
        result[short[name], arch] = use
    return result


class Budgets:
    """The rules and the table of a budget file."""

    def __init__(self, path):
        self.path = path
        self.head = []
        self.need = []      # (pattern, mnemonic, least)
        self.forbid = []    # (pattern, mnemonic)
        self.dynamic = []   # (pattern, bytes)
        self.rows = {}      # (kernel, arch) -> regs, shared, blocks
        in_table = False
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(TABLE):
                in_table = True
            if not in_table:
                self.head.append(line)
            words = line.split("#")[0].split()
            if not words:
                continue
            if in_table:
                self.rows[words[0], words[1]] = tuple(map(int, words[2:5]))
            elif words[0] == "need":
                for word in words[2:]:
                    mnemonic, _, least = word.partition(":")
                    self.need.append((words[1], mnemonic, int(least or 1)))
            elif words[0] == "forbid":
                self.forbid += [(words[1], word) for word in words[2:]]
            elif words[0] == "dynamic":
                self.dynamic.append((words[1], int(words[2])))
            else:
                sys.exit(f"check_gpu: {path}: unknown rule {words[0]}")

    def dynamic_bytes(self, kernel):
        for pattern, size in self.dynamic:
            if fnmatch.fnmatchcase(kernel, pattern):
                return size
        return 0

    def update(self, uses):
        lines = [*self.head,
                 TABLE + ": kernel, arch, registers <=, static shared bytes "
                 "<=, blocks/SM >="]
        for (kernel, arch), use in sorted(uses.items()):
            regs = min(round_up(use.regs, 8), 255)  # as they are given out
            lines.append(f"{kernel} {arch} {regs} {use.shared} "
                         f"{self.blocks(kernel, arch, use)}")
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def blocks(self, kernel, arch, use):
        return blocks_per_sm(arch, use.regs,
                             use.shared + self.dynamic_bytes(kernel),
                             use.threads)

    def instruction_faults(self, kernel, use):
        def count(mnemonic):
            return sum(n for k, n in use.mix.items()
                       if k == mnemonic or k.startswith(mnemonic + "."))
        for pattern, mnemonic, least in self.need:
            if fnmatch.fnmatchcase(kernel, pattern) and count(mnemonic) < least:
                yield f"{mnemonic} {count(mnemonic)} < {least}"
        for pattern, mnemonic in self.forbid:
            if fnmatch.fnmatchcase(kernel, pattern) and count(mnemonic):
                yield f"{count(mnemonic)} {mnemonic}"

    def faults(self, kernel, arch, use):
        if use.stack:
            yield f"stack {use.stack} bytes > 0"
        yield from self.instruction_faults(kernel, use)
        if (kernel, arch) not in self.rows:
            yield "no budget: add one with --update"
            return
        regs, shared, least = self.rows[kernel, arch]
        if use.regs > regs:
            yield f"registers {use.regs} > {regs}"
        # Registers come in eights.
        if regs > math.ceil(use.regs * SLACK) + 8:
            yield f"registers {use.regs}, a budget of {regs} is too loose"
        if use.shared > shared:
            yield f"static shared memory {use.shared} > {shared} bytes"
        if shared > use.shared * SLACK + 64:
            yield f"shared memory {use.shared}, {shared} is too loose"
        blocks = self.blocks(kernel, arch, use)
        if blocks < least:
            yield f"{blocks} blocks/SM < {least}"


def check(budgets, uses):
    bad = 0
    for (kernel, arch), use in sorted(uses.items()):
        faults = list(budgets.faults(kernel, arch, use))
        bad += bool(faults)
        if faults:
            print(f"FAIL {arch} {kernel}: {'; '.join(faults)}")
    for kernel, arch in sorted(set(budgets.rows) - set(uses)):
        bad += 1
        print(f"FAIL {arch} {kernel}: has a budget, is not there")
    for pattern in sorted({rule[0] for rule in budgets.need + budgets.dynamic}):
        if not any(fnmatch.fnmatchcase(kernel, pattern) for kernel, _ in uses):
            bad += 1
            print(f"FAIL rule {pattern}: no kernel has this name")
    print(f"check_gpu: {len(uses)} kernels (architectures counted), "
          f"{bad} faults")
    return 1 if bad or not uses else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", nargs="+", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--budgets", type=pathlib.Path,
                        default=ROOT / "kernels/cuda/budgets.txt")
    args = parser.parse_args()
    if not shutil.which("nvcc") and not os.path.exists(
            "/usr/local/cuda/bin/nvcc"):
        print("check_gpu: SKIPPED, there is no nvcc here")
        return 0
    objects = args.objects
    if not objects:
        for command in (["cmake", "--preset", "cuda"],
                        ["cmake", "--build", "build/cuda", "--target",
                         "kf_cuda", "-j", str(os.cpu_count())]):
            subprocess.run(command, cwd=ROOT, check=True,
                           stdout=subprocess.DEVNULL)
        folder = ROOT / "build/cuda/kernels/cuda/CMakeFiles/kf_cuda.dir"
        objects = sorted(folder.glob("*.cu.o"))
    budgets = Budgets(args.budgets)
    uses = read_objects(tools(), objects)
    if args.update:
        budgets.update(uses)
        budgets = Budgets(args.budgets)
    return check(budgets, uses)


if __name__ == "__main__":
    sys.exit(main())
