"""Measures the processor time of a program and of its descendants, from /proc."""
import os
import pathlib
import subprocess
import threading
import time

from common import printed_json

TICKS = os.sysconf("SC_CLK_TCK")


def times(pid):
    """Returns the parent, and the seconds of the process alone and of its ended children. Returns
    None if the process does not exist."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) / TICKS for field in fields[11:15])
    return int(fields[1]), user + system, ended_user + ended_system


def own(pid):
    """Returns the seconds of the process without its children, or 0."""
    found = times(pid)
    return found[1] if found else 0.0


def tree(pid):
    """Returns the seconds of the process and of all its descendants, ended ones included."""
    every = {int(name): times(name) for name in os.listdir("/proc") if name.isdigit()}
    every = {one: found for one, found in every.items() if found}
    total, members = 0.0, [pid] if pid in every else []
    while members:
        member = members.pop()
        total += sum(every[member][1:])
        members += [one for one, found in every.items() if found[0] == member]
    return total


class Measured:
    """Runs a program and counts its processor time from the first call of `begin` (from any thread)
    until it has ended. What it does before, such as loading its models, is not counted."""

    def __init__(self, command, **options):
        self.command = [str(part) for part in command]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, **options)
        self.before = None

    def begin(self):
        # Scrapy requests the index again when a page links to it.
        if self.before is None:
            self.before = own(self.process.pid), tree(self.process.pid)

    def last_json(self):
        """Returns the JSON object that the program prints, with `cpu_seconds` added.
        `children_cpu_seconds` is the part that its child processes used."""
        ended, latest = threading.Event(), [0.0]

        def watch():
            while not ended.is_set():
                latest[0] = max(latest[0], own(self.process.pid))
                time.sleep(0.02)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            printed = self.process.stdout.read()
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            ended.set()
            watcher.join()
        answer = printed_json(self.command, self.process.returncode, printed)
        alone_before, whole_before = self.before or (0.0, 0.0)
        # The program has waited for its descendants, so `used` contains their time.
        whole, alone = used.ru_utime + used.ru_stime - whole_before, latest[0] - alone_before
        return answer | {"cpu_seconds": round(whole, 2), "children_cpu_seconds": round(max(0.0, whole - alone), 2)}
