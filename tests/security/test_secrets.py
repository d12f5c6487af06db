"""No secret that Quark meets is told on: not by output, logs, files, tracebacks, arguments or pickles.

Secrets are planted in the environment, a profile, a settings file and on the command line; commands
that go well and commands that fail run with every logger at DEBUG; then all they left is searched.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import servers
from tests.security.canaries import (
    CANARIES,
    LOG_ALL,
    MARK,
    PROFILE_KEYS,
    TYPED,
    EchoingStore,
    ProcessWatch,
    credentials_file,
    hits,
    hits_below,
    needles,
)
from tests.training import text_shards

pytestmark = pytest.mark.timeout(300)  # the commands, in the set-up of whichever test comes first
BUCKET = "canaries"
DRIVER = Path(__file__).with_name("command_driver.py")
REPOSITORY = Path(__file__).parents[2]
REFUSALS = ("SignatureDoesNotMatch", "AccessDenied", "ExpiredToken", "InvalidAccessKeyId")


@dataclass(frozen=True)
class Left:
    """What a batch of commands left behind."""

    folder: Path
    commands: list[list[str]]
    codes: list[int]
    stdout: bytes
    stderr: bytes
    processes: set[bytes]
    looks: int
    needles: list[bytes]


@dataclass(frozen=True)
class Place:
    """Where commands run: a project, a home, a store."""

    folder: Path
    endpoint: str
    signed_url: str
    refusing: dict[str, str]
    """Error code → endpoint of a store that refuses with it."""

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **CANARIES,
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": os.pathsep.join((str(self.folder / "site"), str(REPOSITORY))),
            "CANARY_LOGS": str(self.folder / "logs"),
            "AWS_ENDPOINT_URL": self.endpoint,
            "VAST_URL": self.refusing["AccessDenied"],
            "AWS_REGION": servers.REGION,
            "AWS_DEFAULT_REGION": servers.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CACHE_DIR": str(self.folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }


def make_place(folder: Path, endpoint: str, refusing: dict[str, str]) -> Place:
    """Plant everything, and put data into the store."""
    for name in ("home/.aws", "project", "tmp", "site", "logs", "kept"):
        (folder / name).mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(LOG_ALL)
    (folder / "home/.aws/credentials").write_text(credentials_file(PROFILE_KEYS))
    project = folder / "project"
    (project / "quark.yaml").write_text(f"bucket: s3://{BUCKET}\n")
    (project / ".env-canary").write_text("".join(f"{k}={v}\n" for k, v in CANARIES.items()))
    (project / "lines.jsonl").write_text("".join(f'{{"text": "line {n}"}}\n' for n in range(40)))
    (project / "bridge.yaml").write_text(BRIDGE.format(endpoint=endpoint, bucket=BUCKET))
    (project / "closed.yaml").write_text(
        BRIDGE.format(endpoint=refusing["AccessDenied"], bucket=BUCKET)
    )
    client = servers.s3_client(endpoint)
    client.create_bucket(Bucket=BUCKET)
    for key, data in text_shards(shards=8, records=40).items():
        client.put_object(Bucket=BUCKET, Key=f"data/{key}", Body=data)
    client.put_object(Bucket=BUCKET, Key="broken/train-00000.jsonl", Body=b'{"text": "x"}\n{oops\n')
    client.close()
    return Place(folder, endpoint, _signed(endpoint), refusing)


def _signed(endpoint: str) -> str:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=servers.REGION,
        aws_access_key_id=CANARIES["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CANARIES["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=CANARIES["AWS_SESSION_TOKEN"],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    key = {"Bucket": BUCKET, "Key": "data/d/train/train-00000.jsonl"}
    return str(client.generate_presigned_url("get_object", Params=key))


BRIDGE = """\
r2:
  account_id: canary
  endpoint_url: {endpoint}
  access_key_id: ${{R2_ACCESS_KEY_ID}}
  secret_access_key: ${{R2_SECRET_ACCESS_KEY}}
  region: us-east-1
  bucket: {bucket}
  prefix: bridged
pipeline:
  name: jsonl
  input_uri: lines.jsonl
  samples_per_shard: 10
"""
TRAIN = "train quark with s3://canaries/data/d/train/ no validation for 2 steps, batch size 4"
TINY = ("--override", "layers=1", "seq_len=16", "device=cpu", "--yes")


def commands(place: Place) -> list[list[str]]:
    """Return what is carried out; at least forty, more than half of them failing."""
    url, closed = place.signed_url, place.refusing
    password, key, token = TYPED["password"], TYPED["key"], TYPED["token"]
    find = "what datasets are under s3://canaries/data"
    plan = (*TINY[:-1], "--plan")
    listed = [
        ["quark", find, "--verbose"],
        ["quark", find, "--json"],
        ["quark", find, "--override", "profile=canary"],
        ["quark", "inspect s3://canaries/data/d/train/"],
        ["quark", "estimate train quark with s3://canaries/data/d/train/ for 5 steps"],
        ["quark", TRAIN, *plan],
        ["quark", TRAIN, *plan, "--out", "plan.json"],
        ["quark", TRAIN, *plan, "--json"],
        ["quark", f"{TRAIN} call it fox-77", *TINY],
        ["quark", "show fox-77"],
        ["quark", "logs fox-77"],
        ["quark", "list runs", "--json"],
        ["quark", "why", "lr", "fox-77"],
        ["quark", "doctor", "--verbose"],
        ["quark", "--install-completion", "bash"],
        *(["quark", f"export fox-77 for {name}"] for name in ("slurm", "kubernetes", "skypilot")),
        ["quark", "again fox-77", *plan],
        # What fails, of a store that repeats what it was sent.
        *(
            ["quark", find, "--verbose", "--override", f"endpoint_url={endpoint}"]
            for endpoint in closed.values()
        ),
        ["quark", find, "--json", "--override", f"endpoint_url={closed['AccessDenied']}"],
        ["quark", find, "--override", f"endpoint_url={closed['ExpiredToken']}", "profile=canary"],
        ["quark", TRAIN, *TINY, "--override", f"endpoint_url={closed['SignatureDoesNotMatch']}"],
        ["quark", "inspect s3://canaries/broken/", "--verbose"],
        ["quark", "train quark with s3://canaries/nothing/ for 2 steps", *TINY],
        ["quark", "train quark with s3://not-there/x/ for 2 steps", "--verbose", *TINY],
        # Other machines: one that refuses the connection, and a provider that repeats what it was sent.
        ["quark", f"{TRAIN} on ssh host nobody@127.0.0.1:9", "--verbose", *TINY],
        [
            "quark",
            TRAIN,
            *TINY,
            "--override",
            "where=ssh:nobody@127.0.0.1:9",
            "remote_env=HF_TOKEN",
        ],
        ["quark", "cheapest offers for 1 rtx 4090 under $2 an hour", "--verbose"],
        ["quark", f"{TRAIN} on vast under $2 an hour, stop after $1", "--verbose", *TINY],
        # Secrets where they do not belong.
        ["quark", f"train quark with '{url}' for 2 steps", *TINY],
        ["quark", f"inspect '{url}'", "--verbose"],
        ["quark", "explain", f"train quark with '{url}' with token {token}"],
        ["quark", f"train quark with data token {token} for 2 steps", "--verbose"],
        ["quark", "list runs", "--override", f"aws_secret_access_key={key}"],
        ["quark", find, "--override", f"endpoint_url=http://user:{password}@127.0.0.1:9"],
        ["quark", f"what datasets are under s3://user:{password}@canaries/data", "--json"],
        ["quark", f"process '{url}' with json:loads", "--yes"],
        ["quark", f"shard '{url}' into 2 shards to {place.project}/from-web", "--yes"],
        ["quark", f"shard '{url}' into 2 shards to s3://not-there/x", "--yes", "--verbose"],
        # The other programs.
        *_scripts(place),
        ["stream", str(place.folder / "kept"), f"s3://{BUCKET}", "data/d/train/", "0"],
        ["stream", str(place.folder / "kept"), f"s3://{BUCKET}", "data/d/train/", "1"],
        ["stream", str(place.folder / "kept"), f"s3://{BUCKET}", "broken/", "0"],
        ["stream", str(place.folder / "kept"), url, "", "0"],
    ]
    assert len(listed) >= 40
    return listed


def _scripts(place: Place) -> list[list[str]]:
    tools, closed = "tools_utilities.scripts", place.refusing["InvalidAccessKeyId"]
    discover = ["script", f"{tools}.dataset_discovery", "--bucket", BUCKET, "--root", "data"]
    create = ["script", f"{tools}.create_sharded_dataset", "--num_shards", "2", "--input_file"]
    return [
        [*discover, "--human"],
        [*discover, "--json", "--endpoint-url", closed],
        [*create, place.signed_url, "--output_dir", "web-shards", "--verbose"],
        [*create, place.signed_url.replace("train-00000", "none"), "--output_dir", "none"],
        [*create, "lines.jsonl", "--output_dir", "shards", "--verbose"],
        ["script", f"{tools}.shard_manager", "--dataset_dir", "shards", "--action", "claim"],
        ["script", f"{tools}.shard_manager", "--dataset_dir", "none", "--action", "status"],
        ["script", "tools_utilities.bridge.program", "init", "--config", "new.yaml"],
        ["script", "tools_utilities.bridge.program", "plan", "--config", "bridge.yaml"],
        ["script", "tools_utilities.bridge.program", "run", "--config", "bridge.yaml"],
        ["script", "tools_utilities.bridge.program", "run", "--config", "closed.yaml"],
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, moto_endpoint: str) -> Iterator[Place]:
    stores = {code: EchoingStore(code) for code in REFUSALS}
    for store in stores.values():
        store.__enter__()
    try:
        urls = {code: store.url for code, store in stores.items()}
        yield make_place(tmp_path_factory.mktemp("canaries"), moto_endpoint, urls)
    finally:
        for store in stores.values():
            store.__exit__(None, None, None)


@pytest.fixture(scope="module")
def left(place: Place) -> Left:
    """All commands in one process, which costs a start of Python and not forty."""
    listed, watch = commands(place), ProcessWatch()
    with watch.watching():
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(place.folder / "kept")],
            input=json.dumps(listed).encode(),
            capture_output=True,
            cwd=place.project,
            env=place.environment(),
            timeout=240,
            check=False,
        )
    codes = json.loads((place.folder / "kept" / "codes.json").read_text())
    assert len(codes) == len(listed), done.stderr[-3000:]
    found = needles(place.signed_url)
    return Left(
        place.folder, listed, codes, done.stdout, done.stderr, watch.seen, watch.looks, found
    )


def test_output_holds_no_secret(left: Left) -> None:
    assert hits(left.stdout, left.needles) == []
    assert hits(left.stderr, left.needles) == []


def test_commands_did_what_they_say(left: Left) -> None:
    """Nothing is proved by commands that all fail at the door."""
    codes = {" ".join(c): code for c, code in zip(left.commands, left.codes, strict=True)}
    told = left.stderr.decode()
    assert [code for said, code in codes.items() if "export fox-77" in said] == [0, 0, 0]
    elsewhere = [code for said, code in codes.items() if "127.0.0.1:9" in said or "$2" in said]
    assert len(elsewhere) == 5
    assert 0 not in elsewhere
    assert sum(code == 0 for code in codes.values()) >= 20, told[-4000:]
    assert sum(code != 0 for code in codes.values()) >= 15, codes
    assert "you sent" in told  # the refusals came through, their secrets masked
    assert "***" in told
    logs = b"".join(path.read_bytes() for path in (left.folder / "logs").iterdir())
    assert b"botocore" in logs or b"CanonicalRequest" in logs or b"x-amz-security-token" in logs


def test_files_hold_no_secret(left: Left) -> None:
    """Logs, run folders, plans, cache, shards, manifests, progress, history, scripts, pickles."""
    assert hits_below(left.folder, left.needles) == {}
    kept = left.folder / "kept"
    assert len(list(kept.glob("pickle-*"))) >= 4
    assert len(list(kept.glob("traceback-*"))) >= 2


def test_no_process_was_given_a_secret(left: Left) -> None:
    """The process list is everybody's to read."""
    assert left.looks > 50
    assert any(b"brain.ml.train" in seen for seen in left.processes)
    assert [seen for seen in left.processes if hits(seen, left.needles)] == []


def test_run_files_are_those_that_are_known_and_their_owners_alone(left: Left) -> None:
    [run] = [path for path in (left.folder / "project" / "runs").iterdir() if path.is_dir()]
    files = {str(path.relative_to(run)): path for path in run.rglob("*") if path.is_file()}
    own = {name for name in files if not name.startswith(("checkpoints/", "plots/", "events."))}
    assert own <= RUN_FILES, own - RUN_FILES
    assert {"job.yaml", "plan.json", "metrics.jsonl", "log", "process.json"} <= own
    modes = {name: stat.S_IMODE(files[name].stat().st_mode) for name in own}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    saved = left.folder / "project" / "plan.json"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


RUN_FILES = {"job.yaml", "plan.json", "metrics.jsonl", "log", "process.json", ".lock"}


def test_a_signed_address_is_not_taken_where_it_would_be_kept(left: Left) -> None:
    codes = {" ".join(c): code for c, code in zip(left.commands, left.codes, strict=True)}
    refused = [code for said, code in codes.items() if "Signature=" in said and "train" in said]
    assert refused
    assert b"would keep the secret that stands in this address" in left.stderr


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_command_as_a_process_of_its_own(
    tmp_path: Path, moto_endpoint: str, place: Place
) -> None:
    """As people start them: with what is loaded, guarded and written at start and end."""
    del moto_endpoint
    found = needles(place.signed_url)
    told: dict[str, list[str]] = {}
    for number, command in enumerate(commands(place)):
        watch = ProcessWatch()
        with watch.watching():
            done = _alone(command, place, tmp_path / str(number))
        typed = [part.encode() for part in command]
        children = [
            seen
            for seen in watch.seen
            if hits(seen, found) and not all(part in seen for part in typed[1:])
        ]
        if leaks := hits(done.stdout + done.stderr, found) + [str(seen) for seen in children]:
            told[" ".join(command)[:100]] = leaks
    assert told == {}
    assert hits_below(place.folder, found) == {}


def _alone(
    command: Sequence[str], place: Place, folder: Path
) -> "subprocess.CompletedProcess[bytes]":
    programs: dict[str, Callable[[Sequence[str]], list[str]]] = {
        "quark": lambda rest: ["-m", "tools_utilities.scripts.quark_cli", *rest],
        "script": lambda rest: ["-m", *rest],
        "stream": lambda rest: [str(DRIVER), str(folder)],
    }
    folder.mkdir()
    given = json.dumps([list(command)]).encode() if command[0] == "stream" else b""
    return subprocess.run(
        [sys.executable, *programs[command[0]](command[1:])],
        input=given, capture_output=True, cwd=place.project, env=place.environment(),
        timeout=240, check=False,
    )  # fmt: skip


def test_an_uncaught_error_prints_no_secret(tmp_path: Path) -> None:
    """In the main thread and in another; and what a logger of a library says of it."""
    program = tmp_path / "program.py"
    program.write_text(UNCAUGHT)
    environment = {**os.environ, **CANARIES, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert MARK.encode() not in done.stderr
    for said in (b"in a thread", b"in a library", b"in a warning", b"at the end"):
        assert said in done.stderr
    assert done.stderr.count(b"***") >= 5


UNCAUGHT = """\
import logging, os, threading, warnings
from tools_utilities.redaction import guard_process
guard_process()
secret = os.environ["AWS_SECRET_ACCESS_KEY"]
def fail():
    raise ValueError(f"in a thread: {secret}")
thread = threading.Thread(target=fail); thread.start(); thread.join()
logger = logging.getLogger("a.library")
logger.addHandler(logging.StreamHandler())  # added later, by somebody else
try:
    raise ValueError(f"in a library: {secret}")
except ValueError:
    logger.exception("with %s", secret, stack_info=True)
warnings.warn(f"in a warning: {secret}")
raise ValueError(f"at the end: {secret}")
"""


def test_nightly_form_would_notice_a_leak() -> None:
    """The search finds a secret wherever it stands, and pieces of one."""
    url = "http://h/x?X-Amz-Signature=0123456789012345678901234567890123456789"
    wanted = needles(url)
    for secret in (*CANARIES.values(), *PROFILE_KEYS.values(), *TYPED.values(), url):
        assert hits(f"a log says {secret} here".encode(), wanted)
    assert hits(CANARIES["AWS_SESSION_TOKEN"][:40].encode(), wanted)
