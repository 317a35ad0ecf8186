#!/usr/bin/env python3
"""Checks that every metric the dashboard, the Prometheus files and the
documents name is one that server/metrics.cc defines, and that the dashboard
shows what an operator must see. Exit code 1 if not."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "server/metrics.cc"
READERS = ["deploy/**/*.json", "deploy/**/*.yml", "deploy/**/*.yaml",
           "deploy/*.sh", "docs/operations.md"]
NAME = re.compile(r"\bkeyformer_[a-z0-9_]+")
HISTOGRAM_SUFFIX = re.compile(r"_(bucket|sum|count)$")
DASHBOARD = ROOT / "deploy/grafana/dashboards/keyformer.json"
MUST_SHOW = ["keyformer_num_requests_running", "keyformer_num_requests_waiting",
             "keyformer_kv_cache_usage_ratio",
             "keyformer_generation_tokens_total",
             "keyformer_time_to_first_token_seconds",
             "keyformer_inter_token_latency_seconds",
             "keyformer_evicted_tokens_total"]


def main() -> int:
    defined = set(re.findall(r'"(keyformer_[a-z0-9_]+)"', SOURCE.read_text()))
    faults = []
    if not defined:
        faults.append(f"{SOURCE.relative_to(ROOT)}: defines no metric")
    files = sorted({f for glob in READERS for f in ROOT.glob(glob)})
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for name in NAME.findall(line):
                known = (name in defined
                         or HISTOGRAM_SUFFIX.sub("", name) in defined)
                if not known:
                    faults.append(f"{file.relative_to(ROOT)}:{number}: {name} "
                                  "is not in server/metrics.cc")
    shown = {HISTOGRAM_SUFFIX.sub("", name)
             for name in NAME.findall(DASHBOARD.read_text())}
    faults += [f"{DASHBOARD.relative_to(ROOT)}: does not show {name}"
               for name in MUST_SHOW if name not in shown]
    for fault in faults:
        print(fault)
    print(f"check_metrics: {len(defined)} metrics, {len(files)} files, "
          f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
