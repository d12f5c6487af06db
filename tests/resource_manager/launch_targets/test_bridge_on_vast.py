"""`quark-bridge run --use-vast`, as a person types it: a provider on loopback, a real ssh server as what it rents."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests import servers, ssh_server, training
from tests.conftest import MakeBucket, PutObjects
from tests.git_server import commit, git_server
from tests.rental_fake import KEY, RentalFake, offer, rental_fake
from tests.resource_manager.launch_targets.conftest import CANARY
from tests.security.canaries import ProcessWatch
from tools_utilities.bridge import load_settings
from tools_utilities.bridge.pipelines import run_here

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="a rented machine's user is root"),
]
ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "resource_manager.bridge_command"]
TOKEN = "hub-canary-51c0ffee"
SECRETS = (CANARY, KEY, TOKEN)
MANY = 200
ROWS = [{"id": number, "text": f"line {number}"} for number in range(95)]
Bridge = Callable[..., "subprocess.CompletedProcess[str]"]


class Project:
    """A folder with a file of settings, and the bucket that it is about."""

    def __init__(self, folder: Path, endpoint: str, bucket: str, settings: dict[str, Any]) -> None:
        self.folder, self.endpoint, self.bucket = folder, endpoint, bucket
        self.settings = settings
        self.config = folder / "bridge.yaml"
        self.write()

    def write(self, **sections: Mapping[str, Any]) -> None:
        """Write the settings, with some keys of their sections changed; None leaves one out."""
        made = {name: {**values} for name, values in self.settings.items()}
        for name, changes in sections.items():
            changed = {**made.get(name, {}), **changes}
            made[name] = {key: value for key, value in changed.items() if value is not None}
        self.config.write_text(json.dumps(made))

    def command(self, *arguments: str) -> list[str]:
        return [*PROGRAM, *arguments, "--config", str(self.config)]

    def names(self, prefix: str) -> list[str]:
        with contextlib.closing(servers.s3_client(self.endpoint)) as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{prefix}/"
            )
            found = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return [key.removeprefix(f"{prefix}/") for key in found]

    def progress(self) -> int:
        """Return how many rounds are noted beside the output; 0: nothing is."""
        found = self.shards("out").get(".quark-progress.jsonl", b"\n")
        return found.count(b"\n") - 1

    def shards(self, prefix: str) -> dict[str, bytes]:
        """Return everything below a prefix, by name."""
        names = self.names(prefix)
        with contextlib.closing(servers.s3_client(self.endpoint)) as client:
            return {
                name: client.get_object(Bucket=self.bucket, Key=f"{prefix}/{name}")["Body"].read()
                for name in names
            }

    def run_here(self) -> None:
        """Run the same pipeline on this machine, to the prefix `here`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
            run_here(load_settings(self.config), "here")


@pytest.fixture
def fake(machine: ssh_server.Remote) -> Iterator[RentalFake]:
    with rental_fake() as provider:
        provider.offers = [offer(1), offer(2, dph_total=1.1)]
        provider.boot = [None, "running"]
        provider.ssh = ("127.0.0.1", machine.port)
        yield provider


@pytest.fixture
def bucket(moto_endpoint: str, make_bucket: MakeBucket, put_objects: PutObjects) -> str:
    bucket = make_bucket(moto_endpoint)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    put_objects(moto_endpoint, bucket, {"in/a.jsonl": lines})
    return bucket


@pytest.fixture
def project(
    tmp_path: Path, machine: ssh_server.Remote, fake: RentalFake, odd_python: str,
    ssh_path: pytest.MonkeyPatch, moto_endpoint: str, bucket: str,
) -> Project:  # fmt: skip
    folder = tmp_path / "project"
    folder.mkdir()
    variables = {
        "PYTHONPATH": str(ROOT), "VAST_API_KEY": KEY, "VAST_URL": fake.url, "HF_TOKEN": TOKEN,
        "R2_KEY": servers.ACCESS_KEY, "R2_SECRET": CANARY,
    }  # fmt: skip
    for name, value in variables.items():
        ssh_path.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        ssh_path.delenv(name)
    settings = {
        "vast": {
            "api_key": "${VAST_API_KEY}", "max_price_usd_hour": 2, "max_cost_usd": 15,
            "python": odd_python, "packages": "inherit", "workdir": f"{machine.home}/work $dir",
        },
        "r2": {
            "bucket": bucket, "endpoint_url": moto_endpoint, "region": "us-east-1",
            "access_key_id": "${R2_KEY}", "secret_access_key": "${R2_SECRET}", "prefix": "out",
        },
        "pipeline": {
            "name": "jsonl", "input_uri": f"s3://{bucket}/in/", "samples_per_shard": 10,
            "source_options": {"transport_params": {"endpoint_url": moto_endpoint}},
        },
    }  # fmt: skip
    return Project(folder, moto_endpoint, bucket, settings)


@pytest.fixture
def bridge(project: Project) -> Bridge:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            project.command(*arguments), cwd=project.folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        told = done.stdout + done.stderr
        assert [secret for secret in SECRETS if secret in told] == []
        return done

    return run


def secrets_in(folder: Path) -> list[Path]:
    texts = {text.encode() for one in SECRETS for text in (one, json.dumps(one)[1:-1])}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(text in path.read_bytes() for text in texts)]


def settled(fake: RentalFake, count: int = 1) -> bool:
    """Whether so many machines were rented, and all are gone."""
    made = list(range(7000, 7000 + count))
    return (fake.made, sorted(fake.destroyed), fake.ours()) == (made, made, [])


def test_a_pipeline_runs_on_a_rented_machine_as_it_runs_here(
    project, bridge, fake, machine, tmp_path
):
    project.run_here()
    watch = ProcessWatch()
    with watch.watching():
        done = bridge("run", "--use-vast")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"95 samples in 10 shards: s3://{project.bucket}/out\n"
    for said in (
        "offer       2 on vast · 4 x RTX 4090 · Norway, NO · the cheapest of 2",
        "renting offer 2 at $1.100 an hour",
        "instance 7000 is destroyed, as read back; it cost about $0.0",
    ):
        assert said in done.stderr
    assert settled(fake)
    assert [body["label"][:11] for method, _, body in fake.requests if method == "PUT"] == [
        "quark:bridg"
    ]
    shards = project.shards("out")
    assert [name for name in shards if name.endswith(".jsonl")] == [
        f"shard-{number:05d}.jsonl" for number in range(10)
    ]
    assert shards == project.shards("here")

    rented = machine.home / "work $dir"
    assert list((rented / ".quark/runs").iterdir())
    for place in (rented, project.folder, tmp_path / "home"):
        assert secrets_in(place) == []
    assert watch.looks > 10
    assert [seen for seen in watch.seen if any(one.encode() in seen for one in SECRETS)] == []


@pytest.fixture
def many(project: Project, put_objects: PutObjects) -> Project:
    """A pipeline that takes a while: many shards of a sample each."""
    lines = "".join(json.dumps({"id": number}) + "\n" for number in range(MANY)).encode()
    put_objects(project.endpoint, project.bucket, {"in/a.jsonl": lines})
    project.settings["pipeline"] |= {"samples_per_shard": 1}
    project.write()
    return project


def wait_for_shards(project: Project, count: int) -> None:
    training.wait_for(
        lambda: sum(name.endswith(".jsonl") for name in project.names("out")) >= count, 120
    )


def check_many(project: Project) -> None:
    """Everything is there, as a run here would have made it."""
    project.run_here()
    assert project.shards("out") == project.shards("here")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_pipeline_goes_on_where_it_stopped(many, bridge, fake, number):
    with subprocess.Popen(
        many.command("run", "--use-vast"), cwd=many.folder, stderr=subprocess.PIPE, text=True
    ) as started:
        wait_for_shards(many, 40)
        started.send_signal(number)
        _, said = started.communicate(timeout=120)
    assert started.returncode == 128 + number, said
    assert "the same command again: it goes on" in said.lower()
    assert "Traceback" not in said
    assert settled(fake)
    done = many.progress()
    assert done >= 40  # all that was finished is noted

    went_on = bridge("run", "--use-vast")
    assert went_on.returncode == 0, went_on.stderr
    assert settled(fake, 2)
    assert many.progress() == 0
    check_many(many)
    again = bridge("run", "--use-vast")
    assert again.stdout == went_on.stdout
    assert "everything is made already; nothing was rented" in again.stderr
    assert settled(fake, 2)


def test_ctrl_c_at_a_terminal_asks_and_what_is_kept_is_watched_again(many, bridge, fake):
    program, *arguments = many.command("run", "--use-vast")
    screen = pexpect.spawn(
        program, arguments, cwd=str(many.folder), encoding="utf-8", dimensions=(40, 100),
        timeout=120,
    )  # fmt: skip
    seen = io.StringIO()
    screen.logfile_read = seen
    screen.expect("leaves it running, and billed until its cap")
    wait_for_shards(many, 20)
    screen.sendintr()
    screen.expect("k keeps it running")
    screen.send("c")
    screen.expect("Ctrl-C asks")
    screen.sendintr()
    screen.expect("k keeps it running")
    screen.send("k")
    screen.expect("the same command watches it")
    screen.expect(pexpect.EOF)
    assert screen.wait() == 0
    assert [secret for secret in SECRETS if secret in seen.getvalue()] == []
    assert fake.ours() == [7000]
    assert bridge("run", "--use-vast").returncode == 0
    assert settled(fake)
    check_many(many)


def test_a_launcher_that_was_killed_is_followed_by_the_same_command(many, bridge, fake):
    with subprocess.Popen(
        many.command("run", "--use-vast"), cwd=many.folder, stderr=subprocess.DEVNULL
    ) as started:
        wait_for_shards(many, 20)
        started.kill()
    assert fake.ours() == [7000]
    watched = bridge("run", "--use-vast")
    assert watched.returncode == 0, watched.stderr
    assert "was left running; this command watches it again" in watched.stderr
    assert settled(fake)
    check_many(many)


@pytest.fixture
def second(
    ssh_program: ssh_server.Server, machine: ssh_server.Remote, tmp_path: Path
) -> Iterator[ssh_server.Remote]:
    """The machine that is lost: another server, with a home of its own."""
    with ssh_server.machine(tmp_path / "second", ssh_program) as other:
        other.let_in(machine)
        yield other


def test_a_machine_that_is_lost_in_the_middle_is_followed_by_the_next_offer(
    many, bridge, fake, machine, second
):
    many.write(vast={"workdir": "~/work $dir"})  # of either machine
    fake.fleet = [("127.0.0.1", second.port), ("127.0.0.1", machine.port)]
    with subprocess.Popen(
        many.command("run", "--use-vast"), cwd=many.folder, stderr=subprocess.PIPE, text=True
    ) as started:
        wait_for_shards(many, 40)
        second.lose()
        fake.end(7000)
        _, said = started.communicate(timeout=240)
    assert started.returncode == 0, said
    assert "instance 7000 was lost; instance 7000 is destroyed, as read back" in said
    assert "renting offer 1 at $1.250 an hour" in said
    assert settled(fake, 2)
    check_many(many)


@pytest.mark.parametrize("requests", [4, 6])
def test_a_launcher_that_is_killed_while_it_rents_is_cleaned_up_after(
    project, bridge, fake, requests
):
    """In the creation, and while the machine is made."""
    holder: list[subprocess.Popen[bytes]] = []
    seen: list[str] = []

    def kills(method: str, _path: str) -> None:
        seen.append(method)
        if len(seen) == requests:
            training.wait_for(lambda: bool(holder), 30)
            holder[0].kill()

    fake.on_request = kills
    command = project.command("run", "--use-vast")
    with subprocess.Popen(command, cwd=project.folder, stderr=subprocess.DEVNULL) as started:
        holder.append(started)
        assert started.wait(120) == -signal.SIGKILL
    training.wait_for(lambda: fake.ours() == [7000], 30)
    fake.on_request = lambda _method, _path: None
    done = bridge("run", "--use-vast")
    assert done.returncode == 0, done.stderr
    assert "of an earlier command: instance 7000 is destroyed" in done.stderr
    assert settled(fake, 2)


def test_an_error_over_there_is_told_with_its_code_and_the_machine_is_gone(
    project, bridge, fake, put_objects
):
    """The pre-flight reads the first records; a later one is broken."""
    lines = b'{"id": 1}\n' * 100_000 + b"{oops\n"
    put_objects(project.endpoint, project.bucket, {"in/a.jsonl": lines})
    project.write(pipeline={"samples_per_shard": 20_000})
    done = bridge("run", "--use-vast")
    assert done.returncode == 3, done.stderr
    assert "a.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert settled(fake)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """The address of a repository with a checkout of Quark, which says in its output that it is that."""
    with git_server(tmp_path / "served") as (folder, url):
        source = folder / "quark.git"
        for package in ("tools_utilities", "brain", "resource_manager"):
            shutil.copytree(
                ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", source / "pyproject.toml")
        (source / "own_format.py").write_text(OWN_FORMAT)
        commit(source, "all of it", tag="v1")
        yield f"{url}/quark.git"


OWN_FORMAT = """
class Ids:
    name = "ids"
    suffixes = (".ids",)
    compressible = False
    names = None
    def write(self, samples, file):
        count = 0
        for sample in samples:
            file.write(b"%d;" % sample["id"])
            count += 1
        return count
"""


def test_a_checkout_is_cloned_over_there_and_runs_in_place_of_what_would_be_sent(
    project, bridge, fake, machine, repository
):
    (project.folder / "own_format.py").write_text(OWN_FORMAT)  # the pre-flight needs its name here
    project.write(
        vast={"repo_url": repository, "repo_ref": "v1"}, pipeline={"name": "own_format:Ids"}
    )
    done = bridge("run", "--use-vast")
    assert done.returncode == 0, done.stderr
    assert f"checked out {repository} at v1 (" in done.stderr
    assert settled(fake)
    shards = project.shards("out")
    assert shards["shard-00000.ids"] == b"0;1;2;3;4;5;6;7;8;9;"
    assert (machine.home / "work $dir/quark/own_format.py").is_file()
