"""The counting pass shows how far it is on a terminal, and nothing anywhere else."""

import io
from pathlib import Path

import numpy as np

from brain.ml.dataset_shards.counting import count_alone
from brain.ml.dataset_shards.counting_bar import CountingBar
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.stream_data import memory_manager


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def paint(out: io.StringIO, **rest) -> str:
    now = [0.0]
    bar = CountingBar(10, out=out, clock=lambda: now[0], **rest)
    for done, now[0] in ((0, 0.0), (1, 0.1), (5, 0.3)):
        bar.show(done)
    bar.end()
    return out.getvalue()


def test_a_terminal_sees_a_bar_at_most_four_times_a_second_and_then_nothing_left():
    pictures = paint(Terminal()).split("\r")
    assert pictures[1].endswith("  0%  0/10 splits")
    assert pictures[2].startswith("counting samples  ############............  50%  5/10")
    assert pictures[3].strip() == ""
    assert len(pictures) == 5


def test_a_file_and_other_ranks_see_nothing():
    assert paint(io.StringIO()) == ""
    assert paint(Terminal(), shown=False) == ""


def test_the_counting_pass_paints_it_and_keeps_the_counts(tmp_path: Path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    manager = memory_manager([5, 6, 7], tmp_path)
    stream = StreamDataset(manager, "data/x/")
    count_alone(stream.index, stream._source)
    assert "0/3 splits" in terminal.getvalue()
    assert stream.index.counts.tolist() == [5, 6, 7]
    again = StreamDataset(manager, "data/x/")
    painted = terminal.getvalue()
    count_alone(again.index, again._source)
    assert terminal.getvalue() == painted  # kept beside the cache: never counted twice
    assert np.array_equal(again.index.counts, stream.index.counts)
