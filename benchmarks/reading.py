"""How long a sentence takes to read, and a process to explain one: CPU time, so that load says little.

    python benchmarks/reading.py [--rounds 5] [--children 9]

Target: median reading ≤ 1 ms, worst ≤ 50 ms at 500 characters, `quark explain` ≤ 0.35 s of CPU.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from knowledge_hub.hub import KnowledgeHub

SENTENCES = Path(__file__).parent.parent / "tests/knowledge_hub"
NOISE = {
    "misspelt": "train wiht bacth szie 3 epocs ",
    "numbers in words": "one hundred and ",
    "lists": "groups 1, 3,5 and 7 ",
    "alternatives": "for 6 hours or 2 epochs ",
    "overrides": "lr=1 lrr=2 ",
    "articles": "a ",
}
COMMANDS = {
    "quark --help": ["--help"],
    "quark explain": ["explain", "train quark with s3://bucket/set for 2 epochs", "--json"],
}


def cpu_ms(read: Callable[[str], object], text: str, rounds: int) -> float:
    """Return the least CPU time of `rounds` calls, in milliseconds."""
    taken = []
    for _ in range(rounds):
        start = time.process_time_ns()
        read(text)
        taken.append((time.process_time_ns() - start) / 1e6)
    return min(taken)


def reading_lines(rounds: int) -> list[str]:
    """Return the figures of readings in this process."""
    hub = KnowledgeHub()
    texts = [
        json.loads(line)["text"]
        for name in ("utterances", "corpus", "judge")
        for line in (SENTENCES / f"{name}.jsonl").read_text("utf-8").split("\n")
        if line
    ]
    hub.read(texts[0])
    taken = sorted(cpu_ms(hub.read, text, rounds) for text in texts)
    nearly_all = taken[len(taken) * 99 // 100]
    lines = [
        (
            f"{len(texts)} sentences: median {statistics.median(taken):.2f} ms,"
            f" 99 of 100 within {nearly_all:.2f} ms, worst {taken[-1]:.1f} ms"
        )
    ]
    for name, part in NOISE.items():
        best = cpu_ms(hub.read, (part * 500)[:500], rounds)
        lines.append(f"500 characters of {name}: {best:.1f} ms")
    return lines


def child_cpu(arguments: list[str]) -> float:
    """Return the CPU seconds of the program, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # the program beside this interpreter
        [sys.executable, "-m", "quark_cli", *arguments],
        check=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--children", type=int, default=9)
    given = parser.parse_args()
    lines = reading_lines(given.rounds)
    rounds = [
        {name: child_cpu(arguments) for name, arguments in COMMANDS.items()}
        for _ in range(given.children)
    ]
    for name in COMMANDS:
        seconds = sorted(taken[name] for taken in rounds)
        lines.append(
            f"{name}: {statistics.median(seconds):.3f} s of CPU (least {seconds[0]:.3f},"
            f" most {seconds[-1]:.3f}, of {len(seconds)})"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
