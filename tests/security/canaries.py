"""Planted secrets, commands that meet all of them, and a search through all that the commands left.

Every secret holds a `MARK` that stands nowhere else, so that a piece of one is found too.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.fakes import Reply, Request, StubS3, xml_error

MARK = "CaNaRy"
CANARIES = {
    "AWS_ACCESS_KEY_ID": "AKIA7QUARKCANARY0001",
    "AWS_SECRET_ACCESS_KEY": f"wJalr/{MARK}aws+Secret0123456789abcdefgh",
    "AWS_SESSION_TOKEN": f"FwoGZXIvYXdz{MARK}Session/" + "Zm9vYmFy+" * 30 + "==",
    "HF_TOKEN": f"hf_{MARK}HuggingFace0123456789",
    "R2_ACCESS_KEY_ID": f"0123{MARK}r2id0123456789abcdef",
    "R2_SECRET_ACCESS_KEY": f"fedcba9876543210{MARK}r2secret0123456789",
    "AZURE_STORAGE_ACCOUNT_KEY": f"{MARK}AzureKey0123456789abcdefghijklmnopqrstuv==",
    "VAST_API_KEY": f"{MARK}VastKey0123456789abcdef0123456789abcdef",
    "CLOUDFLARE_API_TOKEN": f"{MARK}CloudflareToken0123456789",
    "WANDB_API_KEY": f"{MARK}WandbKey0123456789abcdef0123456789",
}
"""Variables of the environment."""
PROFILE_KEYS = {
    "aws_access_key_id": "AKIA7QUARKCANARY0002",
    "aws_secret_access_key": f"pRoFiLe/{MARK}profile+Secret0123456789",
    "aws_session_token": f"{MARK}ProfileSession0123456789" * 4,
}
"""What stands in ~/.aws/credentials under [canary]."""
TYPED = {
    "password": f"{MARK}TypedPassword",
    "key": f"{MARK}TypedSecretKey0123456789",
    "token": f"hf_{MARK}TypedToken0123456789",
}
"""What a person types where it does not belong."""
PLANTED = (".aws/credentials", ".env-canary")
"""The files that hold secrets because a person put them there."""


def needles(signed_url: str) -> list[bytes]:
    """Return what must be found nowhere: any piece of a secret."""
    signature = parse_qs(urlsplit(signed_url).query)["X-Amz-Signature"][0]
    return [
        MARK.encode(),
        b"AKIA7QUARKCANARY000",
        signature[:20].encode(),
        signature[-20:].encode(),
    ]


def hits(data: bytes, wanted: Iterable[bytes]) -> list[str]:
    """Return the places of secrets in some bytes, with what stands around them."""
    found = []
    for needle in wanted:
        at = data.find(needle)
        if at >= 0:
            found.append(data[max(0, at - 120) : at + 60].decode(errors="replace"))
    return found


def hits_below(folder: Path, wanted: Sequence[bytes]) -> dict[str, list[str]]:
    """Return the files below a folder in which a secret stands, but for those it was planted in."""
    found = {}
    for path in folder.rglob("*"):
        relative = str(path.relative_to(folder))
        if path.is_symlink() or not path.is_file() or relative.endswith(PLANTED):
            continue
        if told := hits(path.read_bytes(), wanted) + hits(relative.encode(), wanted):
            found[relative] = told
    return found


LOG_ALL = """\
import logging, os, sys
_folder = os.environ.get("CANARY_LOGS")
if _folder:
    _file = logging.FileHandler(os.path.join(_folder, "debug-%d.log" % os.getpid()), delay=True)
    _root = logging.getLogger()
    _root.setLevel(logging.DEBUG)
    _root.addHandler(_file)
    _root.addHandler(logging.StreamHandler())
"""
"""A `sitecustomize` by which every Python process logs everything, to its stderr and to a file."""


@dataclass
class ProcessWatch:
    """Keeps the arguments of all processes that begin below this one while it watches."""

    seen: set[bytes] = field(default_factory=set)
    looks: int = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look every few hundredths of a second."""
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.looks += 1
            for process in Path("/proc").iterdir():
                if not process.name.isdigit():
                    continue
                with contextlib.suppress(OSError):
                    self.seen.add((process / "cmdline").read_bytes())
            time.sleep(0.03)


class EchoingStore(StubS3):
    """Refuses everything, and repeats in its message all that the request held, as some stores do."""

    def __init__(self, code: str, status: int = 403) -> None:
        super().__init__({}, self._refuse)
        self._code, self._status = code, status

    def _refuse(self, request: Request) -> Reply:
        told = json.dumps(dict(request.headers)) + request.target
        return xml_error(self._status, self._code, f"you sent {told}")


def credentials_file(keys: Mapping[str, str]) -> str:
    """Return an AWS credentials file with one profile."""
    return "[canary]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items())
