#!/usr/bin/env python3
"""The static gates see the regressions that they are for. Needs nvcc, on the
PATH or in /usr/local/cuda.

  python3 tests/cuda/gates/check_gpu_test.py
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import check_gpu  # noqa: E402 (found by the line above)

NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
SOURCE = pathlib.Path(__file__).with_name("gate_plants.cu")
STRICT = ["-Xptxas=--warn-on-spills,--warn-on-local-memory-usage,-Werror"]
RULES = """# rules
need GatedKernel LDG.E.128:1 FFMA:4
forbid * LDL STL
"""


def compile_kernel(folder, *flags):
    """The object, or what the compiler says of its failure."""
    target = pathlib.Path(folder) / "gated.o"
    command = [NVCC, "-std=c++20", "-O3", "--expt-relaxed-constexpr",
               f"-I{ROOT}", "-gencode", "arch=compute_80,code=sm_80",
               "-gencode", "arch=compute_90,code=[sm_90,compute_90]",
               "-c", SOURCE, "-o", target, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stdout + done.stderr
    return target, ""


class CheckGpuTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "budgets.txt"
        self.file.write_text(RULES, encoding="utf-8")

    def uses(self, *flags):
        target, error = compile_kernel(self.folder, *flags)
        self.assertIsNotNone(target, error)
        return check_gpu.read_objects(check_gpu.tools(), [target])

    def faults(self, uses, arch="sm_90"):
        budgets = check_gpu.Budgets(self.file)
        return "; ".join(budgets.faults("GatedKernel", arch,
                                        uses["GatedKernel", arch]))

    def test_what_is_within_its_budget_passes(self):
        uses = self.uses(*STRICT)
        self.assertEqual(sorted(uses), [("GatedKernel", "sm_80"),
                                        ("GatedKernel", "sm_90")])
        self.assertEqual(uses["GatedKernel", "sm_90"].threads, 128)
        self.assertEqual(uses["GatedKernel", "sm_90"].shared, 512)
        check_gpu.Budgets(self.file).update(uses)
        for arch in check_gpu.ARCHS:
            self.assertEqual(self.faults(uses, arch), "")
        self.assertEqual(check_gpu.check(check_gpu.Budgets(self.file), uses), 0)

    def test_a_budget_that_is_passed_or_loose_fails(self):
        uses = self.uses()
        check_gpu.Budgets(self.file).update(uses)
        text = self.file.read_text(encoding="utf-8")
        used = uses["GatedKernel", "sm_90"].regs
        for regs, shared, blocks, fault in (
                (used - 1, 512, 1, f"registers {used} > {used - 1}"),
                (used + 40, 512, 1, "too loose"),
                (used, 511, 1, "static shared memory 512 > 511"),
                (used, 1024, 1, "too loose"),
                (used, 512, 33, "blocks/SM < 33")):
            row = f"GatedKernel sm_90 {regs} {shared} {blocks}\n"
            self.file.write_text(text + row, encoding="utf-8")
            self.assertIn(fault, self.faults(uses))

    def test_a_kernel_and_its_budget_come_and_go_together(self):
        uses = self.uses()
        self.assertIn("no budget", self.faults(uses))
        check_gpu.Budgets(self.file).update(uses)
        with self.file.open("a", encoding="utf-8") as file:
            file.write("GoneKernel sm_90 16 0 16\n")
        self.assertEqual(check_gpu.check(check_gpu.Budgets(self.file), uses), 1)

    def test_a_narrow_load_fails(self):
        self.assertIn("LDG.E.128 0 < 1",
                      self.faults(self.uses("-DKF_PLANT_NARROW")))

    def test_a_spill_does_not_compile(self):
        target, error = compile_kernel(self.folder, "-DKF_PLANT_SPILL",
                                       *STRICT)
        self.assertIsNone(target)
        self.assertIn("GatedKernel", error)

    def test_a_spill_that_did_compile_fails(self):
        faults = self.faults(self.uses("-DKF_PLANT_SPILL"))
        self.assertRegex(faults, r"stack \d+ bytes > 0")
        self.assertRegex(faults, r"\d+ LDL; \d+ STL")

    def test_occupancy_is_that_of_the_tool_kits_calculator(self):
        # Lines of cuda_occupancy.h of CUDA 13.0.
        for arch, regs, shared, threads, blocks in (
                ("sm_80", 128, 41984, 128, 3), ("sm_90", 128, 40960, 128, 4),
                ("sm_80", 32, 0, 256, 8), ("sm_90", 255, 0, 256, 1),
                ("sm_80", 16, 0, 32, 32), ("sm_90", 65, 0, 1024, 0)):
            self.assertEqual(
                check_gpu.blocks_per_sm(arch, regs, shared, threads), blocks)


if __name__ == "__main__":
    unittest.main()
