"""What is pure of runs on SkyPilot: offers, tasks, secret files, answers, output that becomes files."""

import io
import json
import subprocess
from pathlib import Path
from typing import cast

import pytest
import yaml

from resource_manager.exporting import Asked
from resource_manager.remote_credentials import Sent
from resource_manager.remote_r2 import READ, WRITE, Grant
from resource_manager.remote_settings import has_price, infra_of, is_cloud, remote_of
from resource_manager.runs import read_events
from resource_manager.sky.sky_keeper import name_of
from resource_manager.sky.sky_mirror import SkyMirror
from resource_manager.sky.sky_offer import SkyOffer, chosen_offer, infras_of, is_place
from resource_manager.sky.sky_packing import packed_of
from resource_manager.sky.sky_plan import cap_of, plan_facts, price_of_plan, rate_of
from resource_manager.sky.sky_program import Answer, dotenv, find_sky, json_in, plain
from resource_manager.sky.sky_run import told_code
from resource_manager.sky.sky_supervisor import GRACE_SECONDS, Told, supervise
from resource_manager.sky.sky_task import Held, task_text
from resource_manager.sky.sky_told import CLOCKS_SECONDS, LOG, METRICS, TellsStore, bring_told
from tests.exports_parts import export_of
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.settings import load_settings

TABLE = """\
Considered resources (1 node):
----------------------------------------------------------------------------------
 INFRA                                    INSTANCE           vCPUs   Mem(GB)   GPUS     COST ($)   CHOSEN   
----------------------------------------------------------------------------------
 AWS (us-east-1)                          p3.2xlarge[Spot]   8       61        V100:1   3.06       \x1b[32m   \u2714\x1b[0m     
 Kubernetes (gke_my-proj..._my-cluster)   -                  2       4         -        0.00                
----------------------------------------------------------------------------------
"""  # noqa: W291 - as SkyPilot 0.14.1 prints it
ODD = "a b\tc $HOME ${HOME} ${X:-y} `id` '\" \\ \\' \\\\ # é\nsecond"


# What it would take.


def test_the_chosen_row_of_a_dry_run_is_read():
    assert chosen_offer(TABLE) == SkyOffer(
        place="AWS (us-east-1)", instance="p3.2xlarge[Spot]", price_hour=3.06, infra="aws/us-east-1"
    )
    assert chosen_offer("Error: no resources\n") is None
    assert chosen_offer(TABLE.replace("3.06", "cheap")) is None


def test_a_place_is_written_so_that_skypilot_is_held_to_it():
    assert infras_of("GCP (us-central1-a)") == ("gcp/us-central1-a", "gcp/*/us-central1-a")
    assert infras_of("Kubernetes (lab)")[0] == "k8s/lab"
    assert infras_of("Kubernetes (gke_my-proj..._my-cluster)") == ("k8s",)
    assert infras_of("Lambda") == ("lambda",)


@pytest.mark.parametrize(
    ("place", "cloud", "region", "same"),
    [
        ("AWS (us-east-1)", "AWS", "us-east-1", True),
        ("AWS (us-east-1a)", "AWS", "us-east-1", True),
        ("AWS (us-east-1)", "AWS", "eu-north-1", False),
        ("AWS (us-east-1)", "GCP", "us-east-1", False),
        ("Kubernetes (gke_my-proj..._my-cluster)", "Kubernetes", "gke_my-project_x_my-cluster", True),
        ("Kubernetes (gke_my-proj..._my-cluster)", "Kubernetes", "gke_other_my-cluster", False),
        ("SSH (pool)", "SSH", "ssh-pool", True),
    ],
)  # fmt: skip
def test_a_cluster_is_compared_with_the_place_that_was_confirmed(place, cloud, region, same):
    assert is_place(place, cloud, region) is same


def test_prices_are_shown_in_whole_cents_and_never_go_above_what_was_said():
    offer = SkyOffer(place="AWS", instance="x", price_hour=1.99, infra="aws")
    assert offer.most_hour(None) == pytest.approx(1.995)
    assert offer.most_hour(1.992) == 1.992


# What may be said.


def settings_of(project: Path, **said):
    return load_settings(start_dir=project, sentence=said, overrides={})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"max_seconds": 60}, "what the machine may cost an hour"),
        ({"max_price_hour": 2.0}, "what ends the renting"),
        ({"max_price_hour": 2.0, "max_cost": 15.0, "gpus": 4}, "which GPUs"),
        ({"where": "k8s"}, "when it ends, and no price an hour is known"),
        ({"where": "sky:k8s/lab", "max_cost": 15.0}, "when it ends"),
        ({"where": "slurm"}, "`local`, `ssh:HOST`, `vast`, aws"),
    ],
)
def test_a_cloud_needs_what_holds_its_cost(project, said, error):
    with pytest.raises(UsageError, match=error):
        remote_of(settings_of(project, **{"where": "aws", **said}))


def test_a_cloud_is_what_the_settings_say(project):
    said = {"max_price_hour": 2.0, "max_cost": 15.0, "gpus": 4, "gpu_type": "A100", "nodes": 2}
    remote = remote_of(settings_of(project, where="sky:aws/us-east-1", **said))
    assert remote is not None
    assert remote.terms is not None
    assert (remote.terms.gpus, remote.terms.gpu_type, remote.terms.spot) == (4, "A100", False)
    on_cpu = remote_of(settings_of(project, where="gcp", max_price_hour=1.0, max_seconds=60))
    assert on_cpu is not None
    assert on_cpu.terms is not None
    assert on_cpu.terms.gpus == 0
    own = remote_of(settings_of(project, where="k8s", max_seconds=60))
    assert own is not None
    assert own.terms is not None
    assert own.terms.max_price_hour is None
    with pytest.raises(UsageError, match="its nodes meet"):
        remote_of(settings_of(project, where="k8s", max_seconds=60, rendezvous="a:1"))


def test_places_of_skypilot_are_told_apart():
    assert [infra_of(where) for where in ("aws", "sky", "sky:lambda/us-1")] == [
        "aws",
        None,
        "lambda/us-1",
    ]
    assert [has_price(where) for where in ("gcp", "sky", "k8s", "sky:k8s/Lab")] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_cloud("ssh:aws")


def test_the_word_where_takes_them(project):
    from knowledge_hub.hub import KnowledgeHub

    hub = KnowledgeHub()
    read = hub.read("train quark with s3://b/x --override where=sky:k8s/My-Context")
    assert read.slots["where"] == "sky:k8s/My-Context"
    assert hub.read("train quark with s3://b/x --override where=SKY").slots["where"] == "sky"
    assert hub.read("train quark with s3://b/x --override where=moon").status == "unaccounted"


# Money.


def test_the_cap_is_of_what_is_reckoned_with(make_cloud_job):
    job = make_cloud_job()
    terms = job.remote.terms
    offer = SkyOffer(place="AWS", instance="x", price_hour=1.0, infra="aws")
    assert rate_of(terms, None) == 2.0
    assert rate_of(terms, offer) == pytest.approx(1.005)
    assert cap_of(job, terms, 1.0, 5.0) == 10 * 3600
    own = make_cloud_job("k8s", terms={"max_price_hour": None, "max_cost": None}, max_seconds=60.0)
    free = SkyOffer(place="Kubernetes", instance="-", price_hour=0.0, infra="k8s")
    assert rate_of(own.remote.terms, free) == 0.0
    assert cap_of(own, own.remote.terms, 0.0, 0.0) == 2400 + 60 + 300
    # A cloud that shows no price is reckoned with at what was said.
    assert rate_of(terms, free) == 2.0


def test_the_price_is_of_all_nodes(make_cloud_job):
    job = make_cloud_job(nodes=2, batch_size=8)
    terms = job.remote.terms
    offer = SkyOffer(place="AWS (us-east-1)", instance="m6i", price_hour=0.2, infra="aws/us-east-1")
    held = Held(infra="aws", price_hour=2.0, folder="/q")
    packed = packed_of(job, held, Sent(variables={}), terms, "aws")
    facts = dict(plan_facts(packed, offer, price_of_plan(job, terms, offer, 0.5), 0.5))
    assert facts["sky"] == (
        "AWS (us-east-1) · m6i · no GPU · 2 nodes · the cheapest that SkyPilot finds"
    )
    assert facts["price"].startswith("$0.20 an hour for 2 nodes as SkyPilot's catalogue has it")
    assert "of the $15 that were said, $0.50 are spent: ended after" in facts["cap"]


# The task.


def test_a_task_is_held_and_its_script_is_bash():
    held = Held(infra="aws/us-east-1", price_hour=3.0, deadline=1e9, disk_gb=50.0, folder="/q $x'")
    task = yaml.safe_load(task_text(export_of(nodes=2, gpus=4, gpu_type="A100"), held))
    assert task["resources"] == {
        "accelerators": "A100:4", "disk_size": 50, "infra": "aws/us-east-1", "max_hourly_cost": 1.5,
        "autostop": {"idle_minutes": 5, "down": True},
    }  # fmt: skip
    subprocess.run(["bash", "-n", "-c", task["run"]], check=True)
    # Its time is over long ago: nothing is installed and nothing runs.
    done = subprocess.run(["bash", "-c", task["run"]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (143, "the time of this run is over\n")
    assert "head -n 1" in task["run"]


def test_a_managed_job_has_no_autostop_and_an_unknown_price_no_cap():
    held = Held(infra="k8s", price_hour=None, seconds=60.0, disk_gb=50.0, managed=True, folder="/q")
    task = yaml.safe_load(task_text(export_of(spot=True), held))
    assert task["resources"] == {"cpus": "2+", "use_spot": True, "disk_size": 50, "infra": "k8s"}
    assert "deadline=$(( $(date +%s) + 60 ))" in task["run"]


def test_names_are_such_as_skypilot_takes():
    assert name_of("fox-1", "1a2b3c") == "quark-fox-1-1a2b3c"
    assert name_of("Füchse_2 §", "0") == "quark-f-chse-2-0"
    assert name_of("x" * 90) == f"quark-{'x' * 24}"
    assert Asked().gpus == 0


def test_credentials_that_were_made_for_the_run_are_named_by_its_stores(make_cloud_job):
    job = make_cloud_job()
    bucket = job.train[0].store.uri.removeprefix("s3://")
    made = [
        Grant(
            account="a", bucket=bucket, permission=kind, prefixes=(), keys=f"QUARK_STORE_{number}"
        )
        for number, kind in enumerate((READ, WRITE), 2)
    ]
    sent = Sent(variables={"A": "1"}, grants=tuple(made))
    held = Held(infra="aws", price_hour=1.0, folder="/q")
    there = packed_of(job, held, sent, job.remote.terms, "aws").made.export.job
    assert there.train[0].store.keys == "QUARK_STORE_2"
    assert there.checkpoints is not None
    assert there.checkpoints.store.keys == "QUARK_STORE_3"


# What is said to the program, and what it says.


def test_a_secret_file_says_exactly_what_the_variables_are(tmp_path):
    dotenv_values = pytest.importorskip("dotenv").dotenv_values
    variables = {"ONE": ODD, "TWO": "\\", "THREE": "'", "FOUR": "", "FIVE": "${", "SIX": "x\\"}
    (tmp_path / "file").write_text(dotenv(variables))
    assert dict(dotenv_values(tmp_path / "file")) == variables


def test_answers_are_read_behind_lines_for_people():
    assert json_in('Refreshing…\n[W] note\n[\n  {"name": "a"}\n]\n') == [{"name": "a"}]
    assert json_in("[]") == []
    assert json_in("no such cluster") is None
    assert plain("\x1b[2K\rone\rtwo\x1b[0m\r\nthree") == "two\nthree"
    said = "a\nsky.exceptions.NotSupportedError: spot\n\x1b[0m\nHint: other\n"
    assert Answer(code=1, text=plain(said)).last_words == "sky.exceptions.NotSupportedError: spot"
    assert Answer(code=9, text="").last_words == "it ended with exit code 9"


def test_the_program_is_found_on_the_path_alone(tmp_path):
    (tmp_path / "sky").write_text("")
    assert find_sky({"PATH": str(tmp_path)}) is None
    (tmp_path / "sky").chmod(0o755)
    assert find_sky({"PATH": str(tmp_path)}) == tmp_path / "sky"


# Output that becomes files.


def test_output_is_taken_once_however_often_it_is_told(tmp_path):
    (tmp_path / "log").write_text("of an earlier start\n")
    base = len("of an earlier start\n")
    event = json.dumps({"event": "step", "step": 1})
    lines = [
        "Tailing logs of job 1 on cluster 'q'...", "(fox-1, pid=12) one", "(fox-1, pid=12) @quark " + event,
        "\x1b[36m(head, rank=0, pid=12)\x1b[0m two", "(worker1, rank=1, pid=9, ip=10.0.0.2) three",
    ]  # fmt: skip
    for told in (lines[:3], lines, lines):
        mirror = SkyMirror(tmp_path, log_base=base)
        mirror.begin()
        for line in told:
            mirror.take(line)
    assert (tmp_path / "log").read_text() == "of an earlier start\none\ntwo\nthree\n"
    assert (tmp_path / "metrics.jsonl").read_text() == event + "\n"
    # A machine that took its place begins anew.
    mirror = SkyMirror(tmp_path, log_base=base)
    mirror.begin()
    for line in ("(fox-1, pid=3) one", "(fox-1, pid=3) again", "(fox-1, pid=3) @quark {cut"):
        mirror.take(line)
    assert (tmp_path / "log").read_text().endswith("three\nagain\n")
    assert (tmp_path / "metrics.jsonl").read_text() == event + "\n"


def test_the_exit_code_is_what_the_run_said_of_itself(tmp_path):
    assert told_code(tmp_path, 0.0, 1, 130) == 130
    assert told_code(tmp_path, 0.0, 0, 130) == 0
    assert told_code(tmp_path, 0.0, None, None) == 1
    event = {"event": "end", "exit_code": 3, "time": 50.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    assert told_code(tmp_path, 40.0, 1, None) == 3
    assert told_code(tmp_path, 60.0, 1, None) == 1


def test_what_a_run_has_told_is_kept_in_its_store_and_brought(
    tmp_path, make_cloud_job, aws_environment
):
    here = make_cloud_job()
    store = open_store(here.checkpoints.store)
    said: list[str] = []
    for start, there in ((1000.0, tmp_path / "one"), (2000.0, tmp_path / "two")):
        there.mkdir()
        keeps = TellsStore(store, "saved/fox-1/", there, start=start, tell=said.append)
        keeps.write()  # a node without metrics has nothing to say
        (there / "log").write_text(f"log of {start:.0f}\n")
        (there / "metrics.jsonl").write_text(json.dumps({"event": "start", "time": start}) + "\n")
        keeps.end()
    assert said == []
    assert {info.key for info in store.list("saved/fox-1/told/")} == {
        f"saved/fox-1/told/{start}{suffix}" for start in (1000, 2000) for suffix in (METRICS, LOG)
    }
    run_dir = Path(here.run_dir)
    mirror = SkyMirror(run_dir, log_base=0)
    mirror.begin()
    bring_told(here, 1000.0 + CLOCKS_SECONDS + 1, mirror)  # the first was of an earlier launch
    bring_told(here, 1000.0 + CLOCKS_SECONDS + 1, mirror)
    assert [event["time"] for event in read_events(run_dir)] == [2000.0]
    assert (run_dir / "log").read_text() == "log of 2000\n"


def test_a_store_that_takes_nothing_ends_no_run(tmp_path):
    class Closed:
        def put(self, key, data):
            raise AccessError("denied")

    said: list[str] = []
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    keeps = TellsStore(cast("ObjectStore", Closed()), "p/", tmp_path, start=1.0, tell=said.append)
    keeps.end()
    assert said == ["the store does not take metrics.jsonl: denied"]


# On the machine.


class Handle:
    """A run that ends so many looks after it was asked to."""

    pid = 1

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.asked: list[str] = []

    def poll(self):
        if "kill" in self.asked:
            return 137
        self.looks -= bool(self.asked)
        return 130 if self.looks < 0 else None

    def interrupt(self):
        self.asked.append("interrupt")

    def terminate(self):
        self.asked.append("terminate")

    def kill(self):
        self.asked.append("kill")

    def wait(self, timeout_seconds: float | None = None) -> int:
        raise AssertionError

    def news(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("looks", "number", "several", "asked", "code"),
    [
        (3, 2, False, ["interrupt"], 130),
        (3, 15, False, ["terminate"], 130),
        (3, 15, True, ["interrupt"], 130),  # one of several that is terminated leaves the others
        (10**6, 15, False, ["terminate", "kill"], 137),
    ],
)
def test_a_run_is_asked_once_and_ended_when_it_does_not_end(looks, number, several, asked, code):
    now = [0.0]
    handle = Handle(looks)

    def sleep(_seconds):
        now[0] += GRACE_SECONDS / 10

    done = supervise(
        handle, lambda: number, lambda: None, several=several, clock=lambda: now[0], sleep=sleep
    )
    assert (done, handle.asked) == (code, asked)


def test_a_file_is_told_in_whole_lines_from_where_it_began(tmp_path):
    path, out = tmp_path / "metrics", io.StringIO()
    path.write_bytes(b"before\n")
    told = Told(path, out, lead="@quark ")
    with path.open("ab") as file:
        file.write(b"one\ntw")
        file.flush()
        told.tell()
        assert out.getvalue() == "@quark one\n"
        file.write(b"o\nrest")
    told.tell(last=True)
    assert out.getvalue() == "@quark one\n@quark two\n@quark rest\n"
