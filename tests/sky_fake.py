# ruff: noqa: T201 - a program, whose output is what is read
"""A program `sky` that stands for SkyPilot's: its commands and options, on clouds that are folders.

`install(folder)` puts it on a PATH. What it starts are real processes: a cluster is a folder with a copy of
the work folder, its job is the task's `run` in a shell, with the secrets of the secret file as variables,
and its output is what `logs` prints, each line with the bracket that SkyPilot puts before it. Options
are those of OPTIONS, and nothing else: they are compared with SkyPilot's own at night.

As the real one does, `down` ends with 0 when it fails, and a launch goes on in "the server" when its
client is killed. Idle clusters destroy themselves where a test says so (`write("downs", …)`), a minute
being a little over half a second.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = "skypilot, version 0.14.1"
MINUTE = 0.6
SAME = {
    "--yes": False,
    "--name": True,
    "--secret-file": True,
    "--secret": True,
    "--detach-run": False,
}
OUTPUT = {"--output": True}
LOGS = {"--tail": True, "--follow": False, "--no-follow": False}
OPTIONS: dict[str, dict[str, bool]] = {
    "launch": {**SAME, "--dryrun": False, "--cluster": True},
    "exec": {"--detach-run": False},
    "logs": {**LOGS, "--status": False},
    "cancel": {"--yes": False},
    "down": {"--yes": False},
    "status": {**OUTPUT, "--refresh": False},
    "jobs launch": SAME,
    "jobs queue": {**OUTPUT, "--verbose": False, "--all": False, "--refresh": False},
    "jobs cancel": {"--yes": False, "--name": True},
    "jobs logs": {**LOGS, "--name": True},
    "api status": {**OUTPUT, "--cluster": True},
    "api cancel": {"--yes": False},
}
"""Command → option → whether it takes a value."""
CATALOGUE = [
    {"cloud": "AWS", "region": "us-east-1", "instance": "m6i.large", "price": 0.1, "spot": 0.04},
    {"cloud": "AWS", "region": "us-west-2", "instance": "m6i.large", "price": 0.12, "spot": 0.03},
    {
        "cloud": "GCP",
        "region": "us-central1",
        "instance": "n2-standard-2",
        "price": 0.097,
        "spot": 0.05,
    },
    {"cloud": "Kubernetes", "region": "lab", "instance": "-", "price": 0.0, "spot": 0.0},
]
GPU_FACTOR = 10


class Fake:
    """The state of one stand-in: a folder that all calls of it share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # What the tests see.

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def called(self, *words: str) -> list[list[str]]:
        return [call for call in self.calls if call[: len(words)] == list(words)]

    def fault(self, command: str, *kinds: str) -> None:
        """The next calls of a command go wrong, each by its kind; `always` before a kind: all of them."""
        self.write("faults", {**self.read("faults", {}), command: list(kinds)})

    def clusters(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "clusters").glob("*"))

    def managed(self) -> dict[str, str]:
        return {p.name: self.job_record(p)["status"] for p in (self.folder / "managed").glob("*")}

    def machines(self) -> list[str]:
        """Whatever is billed: clusters, and managed jobs that are not over."""
        jobs = [p for p in (self.folder / "managed").glob("*") if (p / "machine").exists()]
        return [*self.clusters(), *sorted(p.name for p in jobs)]

    def seen(self, name: str) -> dict[str, Any]:
        """What a launch was given: task, secrets, names of files."""
        return dict(json.loads((self.folder / "seen" / name).read_text()))

    def write(self, name: str, content: Any) -> None:
        temporary = self.folder / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(content))
        temporary.replace(self.folder / name)

    def read(self, name: str, default: Any) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else default

    def take_fault(self, command: str) -> str:
        faults = self.read("faults", {})
        kinds = faults.get(command, [])
        if not kinds:
            return ""
        if kinds[0] == "always":
            return str(kinds[1])
        self.write("faults", {**faults, command: kinds[1:]})
        return str(kinds[0])

    def end_all(self) -> None:
        """End whatever a failed test has left running."""
        for kind in ("clusters", "managed"):
            for place in (self.folder / kind).glob("*"):
                remove(place)

    def place(self, name: str) -> Path:
        return self.folder / "clusters" / name

    def job_record(self, place: Path) -> dict[str, Any]:
        """How a job stands by its processes."""
        code = place / "code"
        if (place / "cancelled").exists():
            return {"status": "CANCELLED", "over": True}
        if not code.exists():
            return {"status": "RUNNING", "over": False}
        return {"status": "SUCCEEDED" if code.read_text() == "0" else "FAILED", "over": True}


def install(folder: Path) -> tuple[Fake, Path]:
    """Return a stand-in with nothing in it, and the folder of its program `sky`."""
    programs, state = folder / "programs", folder / "state"
    for path in (programs, state / "clusters", state / "managed", state / "seen"):
        path.mkdir(parents=True)
    program = programs / "sky"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{state}" "$@"\n')
    program.chmod(0o755)
    return Fake(state), programs


def parsed(command: str, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"sky {command}", allow_abbrev=False)
    for option, takes_value in OPTIONS[command].items():
        kind: dict[str, Any] = {"action": "append"} if takes_value else {"action": "store_true"}
        parser.add_argument(option, **kind)
    parser.add_argument("words", nargs=argparse.REMAINDER if command == "exec" else "*")
    return parser.parse_args(words)


def one(value: list[str] | None) -> str:
    return value[-1] if value else ""


# What it would take.


def fits(row: dict[str, Any], infra: str) -> bool:
    cloud, _, rest = infra.partition("/")
    name = {"k8s": "kubernetes"}.get(cloud, cloud)
    if infra and row["cloud"].lower() != name:
        return False
    return not rest or rest in (row["region"], f"*/{row.get('zone', '-')}")


def chosen(fake: Fake, task: dict[str, Any]) -> dict[str, Any] | None:
    asked = task["resources"]
    nodes = task.get("num_nodes", 1)
    price = "spot" if asked.get("use_spot") else "price"
    factor = GPU_FACTOR * int(str(asked.get("accelerators", ":0")).split(":")[1]) or 1
    rows = [
        {**row, "cost": row[price] * factor * nodes}
        for row in fake.read("catalogue", CATALOGUE)
        if fits(row, asked.get("infra", ""))
    ]
    most = asked.get("max_hourly_cost")
    if most is not None:
        # Nobody knows a price there, and none is compared.
        rows = [row for row in rows if not row["cost"] or row["cost"] / nodes <= most]
    if "infra" not in asked:
        rows = [row for row in rows if row["cost"]]
    # GPUs that are billed beside the instance, which the highest price is not compared with.
    rows = [{**row, "cost": row["cost"] + row.get("beside", 0.0)} for row in rows]
    return min(rows, key=lambda row: float(row["cost"]), default=None)


def show_table(fake: Fake, task: dict[str, Any]) -> dict[str, Any] | None:
    found = chosen(fake, task)
    if found is None:
        print(
            "\x1b[31msky.exceptions.ResourcesUnavailableError: No launchable resource found\x1b[0m"
        )
        return None
    place = f"{found['cloud']} ({found.get('zone', found['region'])})"
    gpus = task["resources"].get("accelerators", "-")
    spot = "[Spot]" if task["resources"].get("use_spot") else ""
    rows = [
        ("INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN"),
        (place, found["instance"] + spot, "2", "8", gpus, f"{found['cost']:.2f}", "   \u2714"),
    ]
    print(f"Considered resources ({task.get('num_nodes', 1)} node):\n{'-' * 90}")
    for row in rows:
        print(" " + "".join(cell.ljust(22) for cell in row))
    print("-" * 90, flush=True)
    return found


# What it makes.


def read_task(path: str) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(Path(path).read_text()))


def secrets_of(given: argparse.Namespace) -> dict[str, str]:
    from dotenv import dotenv_values

    found = {name: os.environ[name] for name in given.secret or ()}
    if given.secret_file:
        path = one(given.secret_file)
        if not os.path.isfile(path):  # noqa: PTH113 - as SkyPilot looks
            sys.exit(f"Usage error: Dotenv file does not exist: {path}")
        found |= {name: value or "" for name, value in dotenv_values(path).items()}
    return found


def make(
    fake: Fake, place: Path, task: dict[str, Any], secrets: dict[str, str], found: Any
) -> None:
    """Make a machine and start the task on it; it goes on by itself."""
    work = place / "sky_workdir"
    shutil.copytree(task["workdir"], work)
    seen = {"task": task, "secrets": secrets, "files": sorted(p.name for p in work.iterdir())}
    (fake.folder / "seen" / place.name).write_text(json.dumps(seen))
    (place / "record").write_text(json.dumps({**found, "task": task}))
    (place / "machine").touch()
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
        **secrets, "HOME": str(place), "SKYPILOT_NODE_IPS": "127.0.0.1",
    }  # fmt: skip
    subprocess.Popen(
        [sys.executable, __file__, str(fake.folder), "_job", str(place)], env=variables, cwd=place,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def run_job(fake: Fake, place: Path) -> None:
    """Run the task of a machine (or of several) to its end, as SkyPilot's driver there does."""
    task = json.loads((place / "record").read_text())["task"]
    count = task.get("num_nodes", 1)
    lock = threading.Lock()
    with (place / "run.log").open("w") as log:
        nodes = []
        for rank in range(count):
            words, work = ["bash", "-c", task["run"]], place / "sky_workdir"
            if count > 1:
                words[2], work = node_of(place, task["run"], rank)
            nodes.append(
                subprocess.Popen(
                    words,
                    cwd=work,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        (place / "pid").write_text(str(nodes[0].pid))

        def tell(node: "subprocess.Popen[str]", lead: str) -> None:
            assert node.stdout is not None
            for line in node.stdout:
                with lock:
                    log.write(f"({lead}pid={node.pid}) {line}")
                    log.flush()

        leads = [
            f"{'head' if not rank else f'worker{rank}'}, rank={rank}, " for rank in range(count)
        ]
        leads = leads if count > 1 else [f"{task['name']}, "]
        told = [threading.Thread(target=tell, args=pair) for pair in zip(nodes, leads, strict=True)]
        for thread in told:
            thread.start()
        for thread in told:
            thread.join()
        code = max(node.wait() for node in nodes)
    if place.exists():
        (place / "code").write_text(str(code))
    idle = (task["resources"].get("autostop") or {}).get("idle_minutes")
    if place.parent.name == "managed":
        (place / "machine").unlink(missing_ok=True)
    elif idle is not None and fake.read("downs", None):
        time.sleep(idle * MINUTE)
        remove(place)


def node_of(place: Path, script: str, rank: int) -> tuple[str, Path]:
    """Return the script and the work folder of one of several nodes, whose disks are folders here."""
    work = place / f"node{rank}"
    shutil.copytree(place / "sky_workdir", work)
    job = (work / "job.yaml").read_text()
    there = job.partition("run_dir: ")[2].partition("\n")[0].rpartition("/runs/")[0]
    disk = f"{there}-{rank}"
    Path(disk).mkdir()
    (Path(disk) / "environment").symlink_to(Path(there) / "environment")
    (work / "job.yaml").write_text(job.replace(there, disk))
    return script.replace(there, disk), work


def end_job(place: Path) -> None:
    try:
        os.killpg(int((place / "pid").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return


def remove(place: Path) -> None:
    end_job(place)
    for _ in range(50):  # what writes into it is ending
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(0.02)


# The commands.


def launch(fake: Fake, given: argparse.Namespace) -> int:
    task = read_task(given.words[0])
    if given.dryrun:
        return 0 if show_table(fake, task) else 1
    name = one(given.cluster)
    fault = fake.take_fault("launch")
    if fault == "refused":
        print("sky.exceptions.ResourcesUnavailableError: no capacity")
        return 1
    found = show_table(fake, task)
    if found is None:
        return 1
    number = f"{time.monotonic_ns():x}"
    fake.write("requests", [*fake.read("requests", []), {"request_id": number, "name": "sky.launch", "cluster_name": name}])  # fmt: skip
    secrets = secrets_of(given)
    if fault == "queued":  # by the server: it is made later, unless the request is cancelled
        time.sleep(60)
        return 1
    place = fake.place(name)
    place.mkdir()
    if fault == "elsewhere":
        found = {**found, "region": "eu-north-1"}
    make(fake, place, task, secrets, found)
    drop(fake, number)
    if fault == "sync":
        print("rsync error: broken pipe")
        end_job(place)
        return 1
    if fault == "slow":
        time.sleep(60)
    print("Job submitted, ID: 1")
    return 0


def drop(fake: Fake, number: str) -> None:
    left = [one for one in fake.read("requests", []) if one["request_id"] != number]
    fake.write("requests", left)


def launch_managed(fake: Fake, given: argparse.Namespace) -> int:
    task = read_task(given.words[0])
    if fake.take_fault("jobs launch") == "refused":
        print("sky.exceptions.ResourcesUnavailableError: no capacity")
        return 1
    found = chosen(fake, task)
    if found is None:
        print("sky.exceptions.ResourcesUnavailableError: No launchable resource found")
        return 1
    place = fake.folder / "managed" / one(given.name)
    place.mkdir()
    make(fake, place, task, secrets_of(given), found)
    return 0


def show_logs(fake: Fake, given: argparse.Namespace, place: Path) -> int:
    if not place.exists():
        print(f"sky.exceptions.ClusterDoesNotExist: {place.name}")
        return 1
    if getattr(given, "status", False):
        status = fake.job_record(place)["status"]
        return {"SUCCEEDED": 0, "FAILED": 100, "RUNNING": 101, "CANCELLED": 103}[status]
    print(f"Tailing logs of job 1 on cluster '{place.name}'...")
    fault = fake.take_fault("logs")
    at = 0
    while True:
        over = not place.exists() or fake.job_record(place)["over"] or given.no_follow
        text = (place / "run.log").read_text() if (place / "run.log").exists() else ""
        whole = text[: text.rfind("\n") + 1]
        sys.stdout.write(whole[at:])
        sys.stdout.flush()
        at = max(at, len(whole))
        if over:
            return 0
        if fault == "cut" and at:
            return 1
        time.sleep(0.05)


def status(fake: Fake, given: argparse.Namespace) -> int:
    if fake.take_fault("status") == "failing":
        print("requests.exceptions.ConnectionError: no route to the API server")
        return 1
    records = []
    for name in fake.clusters():
        if given.words and name not in given.words:
            continue
        record = json.loads((fake.place(name) / "record").read_text())
        keep = {key: record[key] for key in ("cloud", "region")}
        records.append({"name": name, "status": "UP", **keep})
    print("Refreshing statuses...")
    print(json.dumps(records, indent=2))
    return 0


def queue(fake: Fake, given: argparse.Namespace) -> int:
    if given.refresh:
        fake.write("controller", "up")
    elif fake.read("controller", "up") == "stopped":
        print("sky.exceptions.ClusterNotUpError: the controller is stopped")
        return 1
    records = []
    for place in (fake.folder / "managed").glob("*"):
        record = fake.job_record(place)
        state = fake.read("schedule_state", None) or ("DONE" if record["over"] else "ALIVE")
        records.append(
            {"job_name": place.name, "status": record["status"], "schedule_state": state}
        )
    print(json.dumps(records, indent=2))
    return 0


def execute(fake: Fake, given: argparse.Namespace) -> int:
    name, *command = given.words
    if fake.take_fault("exec") == "failing":
        return 1
    return subprocess.run(command, cwd=fake.place(name), check=False).returncode


def cancel(fake: Fake, given: argparse.Namespace) -> int:
    place = fake.place(given.words[0])
    (place / "cancelled").touch()
    os.killpg(int((place / "pid").read_text()), signal.SIGTERM)
    return 0


def cancel_managed(fake: Fake, given: argparse.Namespace) -> int:
    if fake.take_fault("jobs cancel") == "failing":
        print("RuntimeError: controller is down")
        return 1
    place = fake.folder / "managed" / one(given.name)
    if place.exists() and not fake.job_record(place)["over"]:
        (place / "cancelled").touch()
        end_job(place)
        (place / "machine").unlink(missing_ok=True)
    return 0


def down(fake: Fake, given: argparse.Namespace) -> int:
    for name in given.words:
        if not fake.place(name).exists():
            print("Cluster(s) not found (tip: see `sky status`).")
        elif fake.take_fault("down") == "failing":
            print(f"Terminating cluster {name}...failed. Cluster(s) failed.")
        else:
            remove(fake.place(name))
    return 0


def api_status(fake: Fake, given: argparse.Namespace) -> int:
    name = one(given.cluster)
    found = [r for r in fake.read("requests", []) if not name or r["cluster_name"] == name]
    print(json.dumps(found, indent=2))
    return 0


def api_cancel(fake: Fake, given: argparse.Namespace) -> int:
    for number in given.words:
        drop(fake, number)
    return 0


COMMANDS: dict[str, Callable[[Fake, argparse.Namespace], int]] = {
    "launch": launch, "exec": execute, "cancel": cancel, "down": down, "status": status,
    "logs": lambda fake, given: show_logs(fake, given, fake.place(given.words[0])),
    "jobs launch": launch_managed, "jobs queue": queue, "jobs cancel": cancel_managed,
    "jobs logs": lambda fake, given: show_logs(
        fake, given, fake.folder / "managed" / one(given.name)
    ),
    "api status": api_status, "api cancel": api_cancel,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    fake, words = Fake(Path(arguments[0])), arguments[1:]
    if words[0] == "_job":
        run_job(fake, Path(words[1]))
        return 0
    with (fake.folder / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if words == ["--version"]:
        print(VERSION)
        return 0
    length = 2 if words[0] in ("jobs", "api") else 1
    command = " ".join(words[:length])
    return COMMANDS[command](fake, parsed(command, words[length:]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
