"""The picker of the real program with few and many groups: filter, ranges, preview, sort, paging."""

import pytest

from tests.end_to_end.test_terminal_pty import Screen

PAGE_DOWN, END = "\x1b[6~", "\x1b[F"
ROW = '{"text": "' + "word " * 230 + '"}\n'


def write_groups(folder, count: int) -> None:
    (folder / "quark.yaml").write_text("layers: 1\nseq_len: 64\ndevice: cpu\nname: fox-1\n")
    for number in range(count):
        group = folder / f"data/set-{number:04}"
        group.mkdir(parents=True)
        for shard in range(8):
            (group / f"train-{shard}.jsonl").write_text(ROW)


def plan_of(screen: Screen) -> str:
    """Return the plan that followed the picker, without blanks: its lines are folded."""
    return screen.text.partition("fox-1 train quark")[2].replace(" ", "")


@pytest.mark.parametrize("size", [(24, 80), (12, 40)])
@pytest.mark.parametrize("count", [3, 40, pytest.param(2000, marks=pytest.mark.nightly)])
def test_groups_are_found_in_a_list_of_any_length(tmp_path, count, size):
    write_groups(tmp_path, count)
    screen = Screen(tmp_path, "train quark with ./data for 3 steps", "--plan", size=size)
    screen.until(f"of {count:,} · by score")
    # Only what changes is written again: waits are for text that is new on the screen.
    screen.send("s" + PAGE_DOWN + END + "p")
    screen.until("1 records")
    screen.send("/0002")
    screen.until("holding '0002'")
    screen.send("\r ")  # the filter is kept; mark
    screen.until("marked")
    screen.send("\r")
    assert screen.end() == 0
    assert "/data/set-0002/" in plan_of(screen)
    assert not (tmp_path / "runs").exists()


def test_ranges_are_typed(tmp_path):
    write_groups(tmp_path, 5)
    screen = Screen(tmp_path, "train quark with ./data for 3 steps", "--plan")
    screen.until("of 5 · by score")
    screen.send("s1,3-4\r")
    assert screen.end() == 0
    assert [n for n in range(5) if f"/data/set-000{n}/" in plan_of(screen)] == [0, 2, 3]
