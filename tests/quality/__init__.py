"""What a cache budget costs in quality: measured over gRPC, like any client.

`python3 -m tests.quality --help` from the project's root; docs/quality.md is
what it writes.
"""
