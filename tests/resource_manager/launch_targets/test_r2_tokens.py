"""Temporary credentials of R2: what is asked for, what is sent with a run, what is said when there are none."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from brain.ml.training_job import CheckpointTarget, DataSource, Remote, TrainingJob, save_job
from resource_manager.launch_targets.ssh import SshTarget
from resource_manager.remote_credentials import expiry_warning, sent_variables, travelling_spec
from resource_manager.remote_proof import prove_readable
from resource_manager.remote_r2 import (
    READ,
    WRITE,
    Grant,
    R2Tokens,
    account_of,
    grants_of,
    lasts_seconds,
)
from resource_manager.remote_shipping import shipment_of
from tests import training
from tests.fakes import Reply, Request, StubS3, xml_error
from tests.fault_proxy import FaultProxy
from tools_utilities.errors import AccessError, QuarkError, UsageError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.redaction import is_secret_name

ACCOUNT = "0123456789abcdef" * 2
ENDPOINT = f"https://{ACCOUNT}.r2.cloudflarestorage.com"
TOKEN = "r2-canary-token-0123456789"
STORE = StoreSpec(uri="r2://genomes", endpoint_url=ENDPOINT, region="auto")
BOX = Remote(where="ssh:gpu-box", credentials="session")
LOST = "lost"
OTHER = "QUARK_STORE_2"


def unproven(*_: Any) -> None:
    """The data is nowhere."""


class Cloudflare:
    """A double of the API: the documented shapes, and faults that are planted in it."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[Any] = []
        """Of the next requests: a status with a body, or LOST; then the usual ones."""

    def answer(self, path: str, key: str, body: dict[str, Any]) -> Any:
        self.asked.append((path, body))
        if self.answers:
            return self.answers.pop(0)
        if key != f"Bearer {TOKEN}":
            return refused(403, 10000, f"Authentication error for {key}")
        number = len(self.asked)
        made = {name: f"{name}-{number}" for name in ("accessKeyId", "secretAccessKey")}
        result = {**made, "sessionToken": f"token-{number}"}
        return 200, {"success": True, "errors": [], "messages": [], "result": result}


def refused(status: int, code: int, message: str) -> tuple[int, dict[str, Any]]:
    errors = [{"code": code, "message": message}]
    return status, {"success": False, "errors": errors, "messages": [], "result": None}


@pytest.fixture
def cloudflare() -> Iterator[Cloudflare]:
    double = Cloudflare()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = double.answer(self.path, self.headers["Authorization"], body)
            if told == LOST:
                self.close_connection = True
                self.connection.close()
                return
            status, content = told
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.url = f"http://127.0.0.1:{server.server_port}/client/v4"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield double
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def here(cloudflare) -> dict[str, str]:
    return {"CLOUDFLARE_API_TOKEN": TOKEN, "CLOUDFLARE_BASE_URL": cloudflare.url}


@pytest.fixture
def make_r2_job(tmp_path, aws_environment) -> Callable[..., TrainingJob]:
    aws_environment.setenv("AWS_ACCESS_KEY_ID", "parent-key")

    def make(**changes: Any) -> TrainingJob:
        fields = {
            "remote": BOX, "max_seconds": 7200.0, "val": (),
            "train": (DataSource(store=STORE, prefix="d/train-"),), **changes,
        }  # fmt: skip
        return training.make_job(tmp_path / "runs/fox-1", STORE, **fields)

    return make


def checkpoints_in(bucket: str, prefix: str = "saved/fox-1/") -> CheckpointTarget:
    store = msgspec.structs.replace(STORE, uri=f"r2://{bucket}")
    return CheckpointTarget(store=store, prefix=prefix)


def test_a_run_that_only_reads_gets_one_credential_that_only_reads(cloudflare, here, make_r2_job):
    sent = sent_variables(make_r2_job(), lambda: here, unproven)
    assert cloudflare.asked == [
        (
            f"/client/v4/accounts/{ACCOUNT}/r2/temp-access-credentials",
            {
                "bucket": "genomes", "parentAccessKeyId": "parent-key",
                "permission": "object-read-only", "ttlSeconds": 7200 + 3600, "prefixes": ["d/"],
            },
        )
    ]  # fmt: skip
    assert sent.variables == {
        "AWS_ACCESS_KEY_ID": "accessKeyId-1",
        "AWS_SECRET_ACCESS_KEY": "secretAccessKey-1",
        "AWS_SESSION_TOKEN": "token-1",
    }
    assert sent.long_lived == ()
    assert sent.expires_at is not None
    assert 10_700 < (sent.expires_at - datetime.now(UTC)).total_seconds() <= 10_800
    assert expiry_warning(sent, 7200.0) == ""


def test_what_is_read_cannot_be_written_where_checkpoints_go_to_the_same_bucket(
    cloudflare, here, make_r2_job
):
    job = make_r2_job(checkpoints=checkpoints_in("genomes"))
    sent = sent_variables(job, lambda: here, unproven)
    asked = [(body["permission"], body["prefixes"]) for _, body in cloudflare.asked]
    assert asked == [("object-read-only", ["d/"]), ("object-read-write", ["saved/fox-1/"])]
    assert sent.variables["AWS_SECRET_ACCESS_KEY"] == "secretAccessKey-1"
    assert sent.variables["QUARK_STORE_2_SECRET_ACCESS_KEY"] == "secretAccessKey-2"
    assert all(is_secret_name(name) for name in sent.variables)
    shipped = shipment_of(job, "/there", "/cache", sent.grants).job
    assert shipped.train[0].store.keys is None
    assert shipped.checkpoints is not None
    assert shipped.checkpoints.store.keys == "QUARK_STORE_2"


def test_each_bucket_has_a_credential_of_its_own(make_r2_job):
    other = msgspec.structs.replace(STORE, uri="s3://held-out")
    job = make_r2_job(
        train=(DataSource(store=STORE, prefix="a/"), DataSource(store=STORE, prefix="b/x-")),
        val=(DataSource(store=other, prefix="val-"),),
        checkpoints=checkpoints_in("mine", "fox-1/"),
    )
    grants = grants_of(job, travelling_spec)
    assert [(one.bucket, one.permission, one.prefixes, one.keys) for one in grants] == [
        ("genomes", "object-read-only", ("a/", "b/"), None),
        ("held-out", "object-read-only", (), "QUARK_STORE_2"),  # its data is in no folder
        ("mine", "object-read-write", ("fox-1/",), "QUARK_STORE_3"),
    ]
    shipped = shipment_of(job, "/there", None, grants).job
    assert [source.store.keys for source in (*shipped.train, *shipped.val)] == [
        None, None, "QUARK_STORE_2",
    ]  # fmt: skip


def test_keys_that_end_by_themselves_are_sent_as_they_are(
    cloudflare, here, make_r2_job, aws_environment
):
    aws_environment.setenv("AWS_SESSION_TOKEN", "t")
    sent = sent_variables(make_r2_job(checkpoints=checkpoints_in("genomes")), lambda: here)
    assert (sent.variables["AWS_SESSION_TOKEN"], sent.grants) == ("t", ())
    assert cloudflare.asked == []


def test_keys_themselves_are_sent_unless_a_session_is_asked_for(cloudflare, here, make_r2_job):
    sent = sent_variables(make_r2_job(remote=Remote(where="ssh:gpu-box")), lambda: here)
    assert sent.long_lived
    assert cloudflare.asked == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refused(403, 10000, f"Authentication error for Bearer {TOKEN}"), "403: Authentication"),
        (refused(400, 10040, "parent key not found"), r"400: parent key not found \(10040\)"),
        ((200, {"success": True, "result": {"accessKeyId": "x"}}), "holds no credentials"),
        ((200, {"success": False, "errors": [], "result": None}), "bucket genomes: 200"),
        ((302, b""), "bucket genomes: 302"),
        ((200, b"<html>"), "bucket genomes: 200"),
        ((404, b"[1]"), "bucket genomes: 404"),
    ],
)
def test_a_refusal_is_one_line_that_holds_no_token(cloudflare, here, make_r2_job, answer, said):
    cloudflare.answers = [answer]
    with pytest.raises(
        AccessError, match=f"no session could be made for the run.*{said}"
    ) as caught:
        sent_variables(make_r2_job(), lambda: here, unproven)
    assert TOKEN not in str(caught.value) + str(caught.value.hint) + repr(caught.value.detail)
    assert "\n" not in str(caught.value)
    assert "CLOUDFLARE_API_TOKEN" in str(caught.value.hint)
    assert len(cloudflare.asked) == 1


@pytest.mark.parametrize("trouble", [(429, b""), (503, b"busy"), LOST])
def test_trouble_that_passes_is_waited_for_and_trouble_that_does_not_is_told(
    cloudflare, here, trouble
):
    waits: list[float] = []
    grant = Grant(
        account=ACCOUNT, bucket="b", permission="object-read-only", prefixes=(), keys=None
    )
    tokens = R2Tokens(here, sleep=waits.append)
    cloudflare.answers = [trouble] * 2
    made, _ = tokens.make((grant,), "p", 900)
    assert made["AWS_SESSION_TOKEN"] == "token-3"
    assert "prefixes" not in cloudflare.asked[0][1]
    cloudflare.answers = [trouble] * 9
    with pytest.raises(AccessError, match="4 times"):
        tokens.make((grant,), "p", 900)
    assert waits == [1.0, 2.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("variables", "error", "said"),
    [
        ({}, AccessError, "CLOUDFLARE_API_TOKEN is not set"),
        ({"CLOUDFLARE_API_TOKEN": " "}, AccessError, "is not set"),
        ({"CLOUDFLARE_API_TOKEN": "a\nb"}, AccessError, "is not a token"),
        (
            {"CLOUDFLARE_API_TOKEN": "t", "CLOUDFLARE_BASE_URL": "http://elsewhere.example"},
            UsageError,
            "not an https address",
        ),
    ],
)
def test_without_a_token_or_a_safe_address_nobody_is_asked(
    cloudflare, make_r2_job, variables, error, said
):
    with pytest.raises(error, match=said):
        sent_variables(make_r2_job(), lambda: variables)
    assert cloudflare.asked == []


@pytest.mark.parametrize(
    ("url", "account"),
    [
        (ENDPOINT, ACCOUNT),
        (f"https://{ACCOUNT}.eu.r2.cloudflarestorage.com/", ACCOUNT),
        (f"https://{ACCOUNT.upper()}.r2.cloudflarestorage.com", ACCOUNT),
        ("https://r2.cloudflarestorage.com", None),
        (f"https://{ACCOUNT}.r2.cloudflarestorage.com.evil.example", None),
        ("http://127.0.0.1:9000", None),
        (None, None),
    ],
)
def test_a_store_is_known_as_r2_by_its_endpoint(url, account):
    assert account_of(StoreSpec(uri="s3://b", endpoint_url=url)) == account


@pytest.fixture
def bucket_at(make_r2_job):
    """Return `bucket_at(stub)`: proves as usual, but where a stub is."""

    def make(stub: StubS3) -> Callable[..., None]:
        def prove(job: Any, variables: Any, grants: Any, specs: Any) -> None:
            moved = {
                spec: msgspec.structs.replace(one, endpoint_url=stub.url)
                for spec, one in specs.items()
            }
            prove_readable(job, variables, grants, moved)

        return prove

    return make


def test_what_was_made_has_read_a_byte_of_the_data_before_it_is_sent(here, make_r2_job, bucket_at):
    other = msgspec.structs.replace(STORE, uri="r2://held-out")
    job = make_r2_job(val=(DataSource(store=other, prefix="val/"),))
    seen: list[tuple[str, str, str]] = []

    def note(request: Request) -> None:
        token = request.headers["x-amz-security-token"]
        seen.append((key_id_of(request), token, request.path))

    with StubS3({"d/train-0": b"data", "val/0": b"data"}, note) as stub:
        sent_variables(job, lambda: here, bucket_at(stub))
    assert seen == [
        ("accessKeyId-1", "token-1", "/genomes"),
        ("accessKeyId-1", "token-1", "/genomes/d/train-0"),
        ("accessKeyId-2", "token-2", "/held-out"),
        ("accessKeyId-2", "token-2", "/held-out/val/0"),
    ]


@pytest.mark.parametrize("denied", ["list", "get"])
def test_what_was_made_and_cannot_read_is_told_before_anything_starts(
    here, make_r2_job, bucket_at, denied
):
    def refuse(request: Request) -> Reply | None:
        is_it = bool(request.key) == (denied == "get")
        return xml_error(403, "AccessDenied", "no") if is_it else None

    with (
        StubS3({"d/train-0": b"data"}, refuse) as stub,
        pytest.raises(AccessError, match=r"cannot read r2://genomes/d/train-: .*AccessDenied"),
    ):
        sent_variables(make_r2_job(), lambda: here, bucket_at(stub))


def test_an_endpoint_of_the_environment_counts(make_r2_job, aws_environment):
    aws_environment.setenv("AWS_ENDPOINT_URL_S3", ENDPOINT)
    bare = StoreSpec(uri="s3://genomes", region="auto")
    job = make_r2_job(train=(DataSource(store=bare, prefix="d/"),))
    assert [one.account for one in grants_of(job, travelling_spec)] == [ACCOUNT]
    assert grants_of(make_r2_job(val=(DataSource(store=StoreSpec(uri="s3://x", endpoint_url="http://127.0.0.1:9"), prefix=""),)), travelling_spec) == ()  # fmt: skip


def test_they_last_as_long_as_the_run_may():
    assert lasts_seconds(7200.0) == 10_800
    assert lasts_seconds(None) == lasts_seconds(1e9) == 604_800


def test_they_end_with_the_machine_that_they_are_for(
    cloudflare, here, make_r2_job, aws_environment
):
    job = make_r2_job(max_seconds=None)
    sent_variables(job, lambda: here, unproven, within_seconds=1800.0)
    assert cloudflare.asked[0][1]["ttlSeconds"] == 1800 + 3600
    for name, value in here.items():
        aws_environment.setenv(name, value)
    cloudflare.answers = [refused(403, 1, "no")]
    target = SshTarget(deadline_seconds=900.0)  # as on a machine that ends itself
    with pytest.raises(AccessError, match="403: no"):
        target.launch(target.plan(job))
    assert cloudflare.asked[1][1]["ttlSeconds"] == 900 + 3600


def test_a_store_reads_its_own_variables(moto_endpoint, aws_environment):
    """What it sends is signed by the second credential, by both of its clients."""
    names = {"ACCESS_KEY_ID": "SECOND", "SECRET_ACCESS_KEY": "s2", "SESSION_TOKEN": "t2"}
    for part, value in names.items():
        aws_environment.setenv(f"QUARK_STORE_2_{part}", value)
    store: Any = open_store(
        StoreSpec(
            uri="s3://b", endpoint_url=moto_endpoint, region="us-east-1", keys="QUARK_STORE_2"
        )
    )
    clients = store._calls.clients()
    frozen = clients._core.get_credentials().get_frozen_credentials()
    assert tuple(frozen) == ("SECOND", "s2", "t2", *frozen[3:])
    assert clients._provider()()["access_key_id"] == "SECOND"
    aws_environment.delenv("QUARK_STORE_2_SECRET_ACCESS_KEY")
    with pytest.raises(QuarkError, match="QUARK_STORE_2_ACCESS_KEY_ID"):
        list(open_store(store.spec).list(""))


def is_of_checkpoints(request: Request) -> bool:
    return (request.key or request.query["prefix"]).startswith("saved/")


def key_id_of(request: Request) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


@pytest.mark.timeout(180)
def test_a_run_reads_by_one_credential_and_writes_by_the_other(
    tmp_path, moto_endpoint, make_bucket, put_objects, training_forks
):
    """The job as it is sent, with the variables as they are sent, trains and saves."""
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, training.text_shards())
    grants = (
        Grant(account=ACCOUNT, bucket=bucket, permission=READ, prefixes=("d/",), keys=None),
        Grant(account=ACCOUNT, bucket=bucket, permission=WRITE, prefixes=("saved/",), keys=OTHER),
    )
    with FaultProxy(moto_endpoint) as proxy:
        store = StoreSpec(uri=f"s3://{bucket}", endpoint_url=proxy.url, region="us-east-1")
        target = CheckpointTarget(store=store, prefix="saved/fox-1/")
        job = training.make_job(tmp_path / "fox-1", store, max_steps=4, checkpoints=target)
        shipped = shipment_of(job, job.run_dir, None, grants).job
        save_job(shipped, tmp_path / "fox-1/job.yaml")
        variables = {
            f"{names}_{part}": f"{names}-{part}"
            for names in ("AWS", OTHER)
            for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
        }
        assert training_forks.wait(training_forks.start(shipped, **variables), 150) == 0
        asked = [one.request for one in proxy.log if one.request.key or one.request.query]
        used = {(is_of_checkpoints(request), key_id_of(request)) for request in asked}
    assert used == {(False, "AWS-ACCESS_KEY_ID"), (True, "QUARK_STORE_2-ACCESS_KEY_ID")}
    assert {request.method for request in asked} >= {"GET", "PUT"}
