"""Shards from a web server: ranges, versions, a source that changed, a transfer that breaks."""

import json

import pytest

from tests.fakes import Reply, Request, StubServer
from tests.scripts.test_create_sharded_dataset import samples_of
from tools_utilities.errors import ChangedError
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset
from tools_utilities.sharding_plan import ShardingPlan

ROWS = b"".join(json.dumps({"id": number}).encode() + b"\n" for number in range(300))


class Site:
    """Serves one file with ranges and an ETag; the first body is cut."""

    def __init__(self) -> None:
        self.body, self.etag, self.cuts = ROWS, '"one"', 1
        self.ranges: list[str] = []

    def __call__(self, request: Request) -> Reply:
        head = {"ETag": self.etag, "Accept-Ranges": "bytes"}
        if request.method == "HEAD":
            return Reply(200, {**head, "Content-Length": str(len(self.body))})
        asked = request.headers.get("range", "")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0) if asked else 0
        part = self.body[start:]
        if asked:
            head["Content-Range"] = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
        status = 206 if asked else 200
        if self.cuts:
            self.cuts -= 1
            return Reply(status, head, part, send_bytes=1000)
        return Reply(status, head, part)


def test_a_broken_transfer_goes_on_and_a_changed_file_is_refused(tmp_path):
    site, plan = Site(), ShardingPlan(num_shards=2)
    with StubServer(site) as server:
        source = f"{server.url}/data/tasks.jsonl"
        create_sharded_dataset(source, str(tmp_path / "out"), plan)
        ids = sorted(row["id"] for row in samples_of(tmp_path / "out"))

        site.etag = '"two"'
        with pytest.raises(ChangedError, match="one"):
            create_sharded_dataset(source, str(tmp_path / "out"), plan)

    assert ids == list(range(300))
    assert any(asked.startswith("bytes=1000-") for asked in site.ranges)
