"""The targets P1 to P7 and P10, and what one run of the benchmark says of each."""

SPEED = (
    # Target, kind, workers, Quark's loader, and how many times the best peer it is to be.
    ("P1", "text", 0, "quark", {"cold": 1.8, "warm": 2.0}),
    ("P1", "text", 0, "quark_plain", {"cold": 1.3, "warm": 1.6}),
    ("P2", "tok", 0, "quark", {"cold": 1.1, "warm": 1.5}),
    ("P3", "text", 2, "quark", {"cold": 1.5, "warm": 2.0}),
    ("P3", "tok", 2, "quark", {"cold": 2.0, "warm": 2.5}),
)
FAR = (
    # The same on the link of 25 ms.
    ("P4", "text", 0, "quark", {"cold": 1.7}),
    ("P4", "text_zst", 0, "quark_zst", {"cold": 1.7}),
)
FIRST_BATCH = {"quark": 0.2, "quark_plain": 0.3}
MEMORY = {0: 0.60, 2: 0.75}
LITDATA = ("litdata", "litdata_raw")
RESUME_SECONDS, RESUME_MB = 1.0, 50
HIT_RATE = 0.45


def speeds(targets, lines):
    """Yield (target, what, figure, wanted, met) of speeds over the best peer; `lines` as of `ratios`."""
    found = {line[:4]: (line[4], line[5]) for line in lines}
    for target, kind, workers, loader, wanted in targets:
        for phase, least in wanted.items():
            peer, speed = found.get((kind, workers, phase, loader), (None, None))
            if speed is not None:
                what = f"{loader}, {kind}, {workers} workers, {phase}, over {peer}"
                yield target, what, f"{speed:.2f}x", f">= {least:g}x", speed >= least


def first_batches(figures):
    """Yield P5: seconds to the first batch, cold, without workers."""
    for (kind, workers, phase, loader), row in sorted(figures.items()):
        if workers == 0 and phase == "cold" and loader in FIRST_BATCH:
            most, seconds = FIRST_BATCH[loader], row["ttfb"]
            what = f"{loader}, {kind}, first batch"
            yield "P5", what, f"{seconds:.2f} s", f"<= {most:g} s", seconds <= most


def memory(figures):
    """Yield P6: peak memory over LitData's, its optimised chunks where they were measured."""
    for (kind, workers, phase, loader), row in sorted(figures.items()):
        peers = [name for name in LITDATA if (kind, workers, phase, name) in figures]
        if loader == "quark" and phase == "cold" and workers in MEMORY and peers:
            share = row["peak_mb"] / figures[kind, workers, phase, peers[0]]["peak_mb"]
            what = f"{kind}, {workers} workers, peak memory over {peers[0]}'s"
            most = MEMORY[workers]
            yield "P6", what, f"{share:.0%}", f"<= {most:.0%}", share <= most


def scale(resume, half):
    """Yield P7 and P10 from what `tests.scale_child` measured."""
    seconds = resume["middle"]["seconds"]
    more = resume["middle"]["peak_mb"] - resume["fresh"]["peak_mb"]
    met = seconds <= RESUME_SECONDS and more <= RESUME_MB
    wanted = f"<= {RESUME_SECONDS:g} s, <= {RESUME_MB} MB"
    yield "P7", "the middle of 10^9 samples", f"{seconds:.2f} s, {more} MB more", wanted, met
    rate = half["epoch 2"]["hit_rate"]
    yield "P10", "epoch 2, half cached", f"{rate:.2f}", f">= {HIT_RATE:g}", rate >= HIT_RATE


def show_targets(lines):
    """Print one line a target; missed ones as plainly as met ones."""
    print("| target | of | figure | wanted | |")
    print("| --- | --- | --- | --- | --- |")
    for target, what, figure, wanted, met in sorted(lines, key=lambda line: int(line[0][1:])):
        print(f"| {target} | {what} | {figure} | {wanted} | {'met' if met else '**missed**'} |")
