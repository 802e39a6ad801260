"""Copies the output of `cargo test` and appends the skipped tests with their reasons.

A test that cannot run here is reported as `test NAME ... ignored, REASON`.
"""

import re
import sys

IGNORED = re.compile(r"^test (.+) \.\.\. ignored(?:, (.+))?$", re.MULTILINE)


def main() -> None:
    printed = bytearray()
    # Writes the output immediately, because the name of a running test appears before its result.
    while chunk := sys.stdin.buffer.read1():
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        printed += chunk
    reasons: dict[str, list[str]] = {}
    for name, reason in IGNORED.findall(printed.decode(errors="replace")):
        reasons.setdefault(reason or "no reason", []).append(name)
    print()
    for reason, names in sorted(reasons.items()):
        print(f"skipped {len(names):4}  {reason}")
        for name in sorted(names):
            print(f"              {name}")
    print(f"skipped {sum(map(len, reasons.values())):4}  in total")


main()
