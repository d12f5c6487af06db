"""SkyPilot itself, in an environment of its own: its options, its tables, its reading of our tasks and files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resource_manager.sky import sky_words
from resource_manager.sky.sky_offer import chosen_offer
from resource_manager.sky.sky_program import dotenv
from resource_manager.sky.sky_task import Held, dry_text, task_text
from tests import sky_fake
from tests.exports_parts import export_of
from tests.resource_manager.sky.test_sky_parts import ODD

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
VERSION = "0.14.1"
ENVIRONMENT_VARIABLE = "QUARK_TEST_SKYPILOT"
"""Python of an environment that has it already; else one is made."""

OPTIONS = """
import json, sys, click
from sky.client.cli import command
wrong = []
for name, options in json.load(sys.stdin).items():
    found = command.cli
    for word in name.split():
        found = found.get_command(click.Context(found), word)
    known = {}
    for one in found.params:
        known |= dict.fromkeys((*one.opts, *one.secondary_opts), not getattr(one, "is_flag", False))
    wrong += [(name, option) for option, takes in options.items() if known.get(option) != takes]
print(json.dumps(wrong))
"""
WORDS = """
import json, sys, click
from sky.client.cli import command
for words in json.load(sys.stdin):
    found, context = command.cli, click.Context(command.cli)
    while isinstance(found, click.Group):
        found = found.get_command(context, words.pop(0))
        context = click.Context(found)
    found.make_parser(context).parse_args(words)
print("parsed")
"""
TASKS = """
import sys, yaml, sky
from sky.utils import common_utils, schemas
for path in sys.argv[1:]:
    config = yaml.safe_load(open(path))
    common_utils.validate_schema(config, schemas.get_task_schema(), path)
    if "accelerators" not in config["resources"]:  # a GPU's name is looked up on the web
        task = sky.Task.from_yaml(path)
        [found] = task.resources
        print(task.num_nodes, found.max_hourly_cost, found.autostop_config)
"""
TABLE = """
from sky import optimizer
from sky.utils import infra_utils
import colorama
table = optimizer._create_table(["INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN"])
place = infra_utils.InfraInfo("AWS", "us-east-1", None).formatted_str()
mark = colorama.Fore.GREEN + "   " + "\\u2714" + colorama.Style.RESET_ALL
table.add_row([place, "p3.2xlarge", "8", "61", "V100:1", "3.06", mark])
table.add_row(["Kubernetes (lab)", "-", "2", "4", "-", "0.00", ""])
print(table)
"""
SECRETS = """
import json, sys
from sky.client.cli import flags
print(json.dumps(flags._parse_dotenv_file(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python that has SkyPilot."""
    if os.environ.get(ENVIRONMENT_VARIABLE):
        return os.environ[ENVIRONMENT_VARIABLE]
    environment = tmp_path_factory.mktemp("skypilot") / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = [str(environment / "bin/pip"), "install", "-q", f"skypilot=={VERSION}"]
    if subprocess.run(install, capture_output=True, timeout=1200, check=False).returncode:
        pytest.skip("SkyPilot cannot be installed here")
    return str(environment / "bin/python")


def run(python: str, program: str, *arguments: object, given: object = None, folder: Path) -> str:
    done = subprocess.run(
        [python, "-c", program, *(str(one) for one in arguments)], input=json.dumps(given), cwd=folder,
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def every_line() -> list[sky_words.Words]:
    return [
        sky_words.dry_run("n", "t.yaml"), sky_words.launch("n", "t.yaml", "/dev/fd/3"),
        sky_words.launch_job("n", "t.yaml", "/dev/fd/3"), sky_words.execute("n", "touch", "f"),
        *(sky_words.logs("n", follow=follow) for follow in (True, False)),
        *(sky_words.job_logs("n", follow=follow) for follow in (True, False)),
        sky_words.job_status("n"), sky_words.cancel("n"), sky_words.cancel_job("n"), sky_words.down("n"),
        sky_words.status("n"), sky_words.jobs(wake=True), sky_words.requests("n"), sky_words.requests(),
        sky_words.drop_request("0"),
    ]  # fmt: skip


def test_every_option_is_one_of_skypilots(python, tmp_path):
    assert json.loads(run(python, OPTIONS, given=sky_fake.OPTIONS, folder=tmp_path)) == []
    # The secret file is opened while the words are read.
    lines = [[("--secret" if w == "--secret-file" else w) for w in words] for words in every_line()]
    lines = [[("A=b" if w == "/dev/fd/3" else w) for w in words] for words in lines]
    assert run(python, WORDS, given=lines, folder=tmp_path) == "parsed\n"


def test_the_stand_in_knows_every_command_that_is_typed():
    typed = {
        " ".join(words[: 2 if words[0] in ("jobs", "api") else 1]): words for words in every_line()
    }
    assert typed.keys() == sky_fake.OPTIONS.keys()


def test_a_wrong_option_would_be_seen(python, tmp_path):
    wrong = run(python, OPTIONS, given={"launch": {"--max-price": True}}, folder=tmp_path)
    assert json.loads(wrong) == [["launch", "--max-price"]]


def test_skypilot_takes_the_tasks(python, tmp_path):
    held = Held(infra="aws/us-east-1", price_hour=3.0, deadline=2e9, disk_gb=50.0, folder="/srv/q")
    managed = Held(
        infra="gcp/*/us-central1-a", price_hour=3.0, seconds=60, disk_gb=50, managed=True
    )
    texts = {
        "one": task_text(export_of(nodes=2), held),
        "dry": dry_text(export_of(), held),
        "gpu": task_text(export_of(gpus=4, gpu_type="RTX4090", spot=True), managed),
        "k8s": task_text(export_of(gpus=1, gpu_type="H100"), Held(infra="k8s/Lab", price_hour=None, disk_gb=50)),
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    paths = [tmp_path / f"{name}.yaml" for name in texts]
    first, second = run(python, TASKS, *paths, folder=tmp_path).splitlines()
    assert first.startswith("2 1.5 AutostopConfig(enabled=True, idle_minutes=5, down=True")
    assert second.startswith("1 3.0 ")


def test_its_table_is_read(python, tmp_path):
    offer = chosen_offer(run(python, TABLE, folder=tmp_path))
    assert offer is not None
    assert (offer.infra, offer.instance, offer.price_hour) == ("aws/us-east-1", "p3.2xlarge", 3.06)


def test_its_secret_file_says_what_the_variables_are(python, tmp_path):
    variables = {"ONE": ODD, "TWO": "\\", "THREE": "it's ${HOME}"}
    (tmp_path / "secrets").write_text(dotenv(variables))
    assert json.loads(run(python, SECRETS, tmp_path / "secrets", folder=tmp_path)) == variables
