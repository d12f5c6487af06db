"""Makes a small image dataset in the WebDataset form: pictures of four shapes, their class beside them.

python examples/images/make_shards.py data/datasets/shapes
"""

import argparse
import io
import random
import tarfile
from pathlib import Path

from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "cross")
SIZE = 24
TRAIN_SHARDS, VAL_SHARDS, IMAGES = 8, 2, 120


def draw(shape: str, source: random.Random) -> bytes:
    """Return a JPEG of a shape somewhere, in some size and colours."""
    dark, light = source.randint(0, 90), source.randint(150, 255)
    image = Image.new("L", (SIZE, SIZE), dark)
    pen = ImageDraw.Draw(image)
    half = source.randint(5, 8)
    x, y = (source.randint(half + 1, SIZE - half - 2) for _ in range(2))
    box = (x - half, y - half, x + half, y + half)
    if shape == "circle":
        pen.ellipse(box, fill=light)
    elif shape == "square":
        pen.rectangle(box, fill=light)
    elif shape == "triangle":
        pen.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill=light)
    else:
        pen.line((x - half, y, x + half, y), fill=light, width=3)
        pen.line((x, y - half, x, y + half), fill=light, width=3)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def write_shard(path: Path, first: int, source: random.Random) -> None:
    """Write one tar: `000012.jpg` beside `000012.cls`, which holds the class's number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for number in range(first, first + IMAGES):
            label = source.randrange(len(SHAPES))
            for ending, content in (
                ("jpg", draw(SHAPES[label], source)),
                ("cls", str(label).encode()),
            ):
                member = tarfile.TarInfo(f"{number:06}.{ending}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def main() -> None:
    """Write the shards of both parts below the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    source = random.Random(7)  # noqa: S311 - the same pictures every time
    first = 0
    for part, count in (("train", TRAIN_SHARDS), ("val", VAL_SHARDS)):
        for number in range(count):
            write_shard(folder / part / f"{part}-{number:05}.tar", first, source)
            first += IMAGES


if __name__ == "__main__":
    main()
