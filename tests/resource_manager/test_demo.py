"""The demo: its dataset, and that it tells a kept promise from a broken one."""

import io
import json
import math
import sys
from pathlib import Path

import pytest

from resource_manager.demo import Demo
from resource_manager.demo_data import byte_entropy, make_demo_data
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import DataNotFoundError, QuarkError

TRAINER = """
import json, pathlib, signal, sys, time
sentence = sys.argv[1]
options = dict(arg.split("=", 1) for arg in sys.argv[2:] if "=" in arg)
runs = pathlib.Path(options["out_dir"])
name = options.get("name") or sentence.split()[1]
folder = runs / name
folder.mkdir(parents=True, exist_ok=True)
resumed = sentence.startswith("resume")
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))

def write(**event):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\\n")

write(event="start", total_steps=9)
for step in range(5 if resumed else 1, 10):
    if stop:
        write(event="end", exit_code=130, step=step - 1)
        sys.exit(130)
    write(event="step", step=step, loss=9 / step)
    time.sleep(0 if resumed or name.endswith("2") else 0.1)
loss = {"demo-1": LOSS_1, "demo-2": LOSS_2}[name]
write(event="end", exit_code=0, step=9, val_loss=loss, samples=1, tokens=1)
sys.exit(CODE)
"""


@pytest.fixture(scope="module")
def small_library(tmp_path_factory):
    """A library of many files, some of them alike, one not UTF-8."""
    folder = tmp_path_factory.mktemp("library")
    for n in range(120):
        text = "".join(f"def function_{n}_{i}(x):\n    return x + {n * i}\n\n" for i in range(300))
        (folder / f"module_{n:03}.py").write_text(text)
    (folder / "copy.py").write_text((folder / "module_000.py").read_text())
    (folder / "latin.py").write_bytes(b"# \xe9\n" * 100)
    (folder / "site-packages").mkdir()
    (folder / "site-packages/other.py").write_text("not_the_library = 1\n" * 100)
    return folder


def load(folder: Path, stem: str) -> list[dict[str, str]]:
    lines = [
        line for path in sorted(folder.glob(f"{stem}-*")) for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines]


def test_the_dataset_is_deterministic_disjoint_and_without_repeats(tmp_path, small_library):
    made = make_demo_data(tmp_path / "a", small_library, min_bytes=10**6)
    make_demo_data(tmp_path / "b", small_library, min_bytes=10**6)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 16 + 8
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    train, val = load(tmp_path / "a", "train"), load(tmp_path / "a", "val")
    assert (len(train), len(val)) == (made.num_train_samples, made.num_val_samples)
    assert not {record["file"] for record in train} & {record["file"] for record in val}
    texts = [record["text"] for record in (*train, *val)]
    assert len(texts) == len(set(texts))
    assert not any("site-packages" in record["file"] for record in train)
    assert made.val_entropy == pytest.approx(byte_entropy(iter([r["text"].encode() for r in val])))


def test_the_real_library_makes_at_least_eight_megabytes(tmp_path):
    made = make_demo_data(tmp_path / "demo")
    size = sum(path.stat().st_size for path in (tmp_path / "demo").iterdir())
    assert made.num_bytes == size >= 8_000_000
    assert made.val_entropy - 0.5 > 1.5  # there is something to learn


def test_too_little_text_is_an_error(tmp_path, small_library):
    with pytest.raises(DataNotFoundError, match="needs 8,000,000"):
        make_demo_data(tmp_path, small_library)


def test_entropy_of_bytes():
    assert byte_entropy(iter([b"abab"])) == pytest.approx(math.log(2))
    assert byte_entropy(iter([b"aa", b"aa"])) == 0


def demo(tmp_path: Path, small_library: Path, *, losses=(1.5, 1.5), code=0):
    script = tmp_path / "trainer.py"
    text = TRAINER.replace("LOSS_1", str(losses[0])).replace("LOSS_2", str(losses[1]))
    script.write_text(text.replace("CODE", str(code)))
    out = io.StringIO()
    console = Console(Surroundings(), stdin=io.StringIO(), stdout=out, stderr=io.StringIO())
    made = Demo(
        tmp_path, tmp_path / "runs", console, program=(sys.executable, str(script)),
        make_data=lambda folder: make_demo_data(folder, small_library, min_bytes=10**6),
    )  # fmt: skip
    return made.run(), out.getvalue()


def test_kept_promises(tmp_path, small_library):
    code, out = demo(tmp_path, small_library)
    assert code == 0
    assert out.count("kept") == 3
    assert "demo-1" in out
    assert "demo-2" in out
    assert "█" in out or "#" in out


@pytest.mark.parametrize("losses", [(1.5, 1.500002), (9.0, 9.0)])
def test_broken_promises_end_with_1(tmp_path, small_library, losses):
    code, out = demo(tmp_path, small_library, losses=losses)
    assert code == 1
    assert "broken" in out


def test_a_run_that_fails_is_an_error(tmp_path, small_library):
    with pytest.raises(QuarkError, match="exit code 3"):
        demo(tmp_path, small_library, code=3)
