"""What a pipeline's machine is rented for: refusals by name, what is sent, what travels. Nothing is asked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resource_manager.bridge_boarding import LogTail, pipeline_wheel
from resource_manager.bridge_order import RentedPipeline, rented_pipeline
from resource_manager.bridge_preflight import begun, check_answers, foreign_environment
from tests.fakes import StubCloud, xml_error
from tests.git_server import commit, git_server
from tests.resource_manager.test_bridge_renting import changed
from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.bridge.pipelines import PipelineError
from tools_utilities.errors import AccessError, InputNeededError, UsageError

URL = "https://example.org/me/quark.git"


def order(tmp_path: Path, here: dict[str, str] | None = None, **changes: Any) -> RentedPipeline:
    return rented_pipeline(changed(**changes), None, here or {}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"vast": None}, UsageError, "no section vast"),
        ({"vast": {"max_price_usd_hour": None}}, InputNeededError, "may cost an hour"),
        ({"vast": {"max_cost_usd": None}}, InputNeededError, "what ends the renting"),
        ({"vast": {"max_price_usd_hour": 0.0}}, UsageError, "vast.max_price_usd_hour=0"),
        ({"vast": {"max_cost_usd": -1.0}}, UsageError, "vast.max_cost_usd=-1"),
        ({"vast": {"max_hours": float("nan")}}, UsageError, "vast.max_hours=nan"),
        ({"vast": {"storage_gb": 5.0}}, UsageError, "vast.storage_gb=5: at least 10"),
        ({"vast": {"packages": "all"}}, UsageError, "vast.packages=all"),
        ({"vast": {"credentials": "none"}}, UsageError, "vast.credentials=none"),
        ({"vast": {"workdir": ""}}, UsageError, "vast.workdir '': not a folder"),
        ({"vast": {"workdir": "work"}}, UsageError, "vast.workdir 'work'"),
        ({"vast": {"repo_ref": "v1"}}, UsageError, "there is no vast.repo_url"),
        ({"vast": {"repo_url": "/my/checkout"}}, UsageError, "not an address that a rented"),
        ({"vast": {"repo_url": "file:///my/checkout"}}, UsageError, "not an address"),
        ({"vast": {"repo_url": "git@example.org:me/quark"}}, UsageError, "not an address"),
        ({"vast": {"repo_url": "http://example.org/quark"}}, UsageError, "not an address"),
        ({"vast": {"repo_url": "git://example.org/quark"}}, UsageError, "not an address"),
        ({"vast": {"repo_url": "--upload-pack=x"}}, UsageError, "not an address"),
        ({"vast": {"repo_url": "https://me:pass12345@e.org/q"}}, UsageError, "would keep the secret"),
        ({"vast": {"repo_url": URL, "repo_ref": "--x"}}, UsageError, "vast.repo_ref --x"),
        ({"vast": {"repo_url": URL, "repo_ref": "a:b"}}, UsageError, "vast.repo_ref a:b"),
        ({"pipeline": {"input_uri": "data/in.jsonl"}}, UsageError, "pipeline.input_uri data/in"),
        ({"pipeline": {"input_uri": "file:///d"}}, UsageError, "a place of this machine"),
        ({"pipeline": {"staging_dir": "~/s"}}, UsageError, "pipeline.staging_dir ~/s: a place of"),
        ({"r2": None, "output_dir": "out"}, UsageError, "the output out: a place of this machine"),
        ({"pipeline": {"name": "mine:Format"}}, UsageError, "your own code is on this machine"),
    ],
)  # fmt: skip
def test_what_means_nothing_on_a_rented_machine_is_refused_by_name(tmp_path, changes, error, said):
    top = {name: changes.pop(name) for name in ("output_dir",) if name in changes}
    settings = msgspec.structs.replace(changed(**changes), **top)
    with pytest.raises(error, match=said) as caught:
        rented_pipeline(settings, None, {}, tmp_path)
    assert "\n" not in str(caught.value)
    assert "pass12345" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_keys_of_the_bucket_are_sent_and_the_order_holds_none(tmp_path, aws_environment):
    found = order(tmp_path, vast={"workdir": "~/w"})
    assert found.sent.variables == {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
    }  # fmt: skip
    assert found.sent.long_lived == ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    text = msgspec.json.encode(found.order).decode()
    assert "hunter2" not in text + repr(found)
    assert '"vast":null' in text
    assert found.endpoints == ("127.0.0.1:9",)
    assert found.remote.folder == "~/w/.quark"
    assert found.name == "bridge-set"
    assert order(tmp_path, r2={"prefix": "other"}).folder != found.folder


def test_without_keys_those_of_this_environment_are_sent(tmp_path, aws_environment):
    found = order(tmp_path, r2={"access_key_id": "", "secret_access_key": ""})
    assert found.sent.variables["AWS_SECRET_ACCESS_KEY"] == "quark-test-secret"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        aws_environment.delenv(name)
    with pytest.raises(AccessError, match="no AWS credentials here to send"):
        order(tmp_path, r2={"access_key_id": "", "secret_access_key": ""})


def test_a_profile_beside_keys_is_refused(tmp_path, aws_environment):
    profile: dict[str, Any] = {"transport_params": {"profile": "lab"}}
    options = msgspec.structs.replace(changed().pipeline.source_options, **profile)
    with pytest.raises(
        UsageError, match=r"transport_params.profile: the input and the output need"
    ):
        order(tmp_path, pipeline={"source_options": options})


def test_a_profile_of_the_input_becomes_its_keys(tmp_path, aws_environment):
    config = tmp_path / "credentials"
    config.write_text("[lab]\naws_access_key_id = A\naws_secret_access_key = S\n")
    aws_environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(config))
    aws_environment.setenv("AWS_ACCESS_KEY_ID", "A")
    aws_environment.setenv("AWS_SECRET_ACCESS_KEY", "S")
    options = msgspec.structs.replace(
        changed().pipeline.source_options, transport_params={"profile": "lab", "region": "eu-x-1"}
    )
    found = order(
        tmp_path, pipeline={"source_options": options},
        r2={"access_key_id": "", "secret_access_key": ""},
    )  # fmt: skip
    assert found.sent.variables == {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
    travels = found.order.settings.pipeline.source_options.transport_params
    assert travels == {"region": "eu-x-1"}


def test_what_the_environment_says_of_the_stores_travels_in_the_settings(tmp_path, aws_environment):
    aws_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7")
    settings = msgspec.structs.replace(changed(r2=None), output_dir="s3://made/set/")
    found = rented_pipeline(settings, "more", {}, tmp_path)
    travelling = found.order.settings
    assert travelling.r2 is not None
    assert travelling.r2.endpoint == "http://127.0.0.1:7"
    assert (travelling.r2.bucket, travelling.r2.prefix) == ("made", "set/more")
    assert travelling.r2.signing_region == "us-east-1"
    assert found.output == "s3://made/set/more"
    assert found.endpoints == ("127.0.0.1:7",)


def test_a_dataset_of_the_hub_brings_its_token_and_its_package(tmp_path, aws_environment):
    found = order(tmp_path, {"HF_TOKEN": "hf_secret"}, pipeline={"input_uri": "hf://me/set"})
    assert found.sent.variables["HF_TOKEN"] == "hf_secret"
    assert "HF_TOKEN" in found.sent.long_lived
    wanted = pipeline_wheel(found).requirements
    assert any(line.startswith("datasets") for line in wanted)
    assert not [line for line in wanted if line.startswith(("torch", "transformers", "peft"))]
    assert not [line for line in pipeline_wheel(order(tmp_path)).requirements if "datasets" in line]


def test_no_module_of_a_pipeline_needs_what_is_left_out():
    """Nothing that a machine runs for a pipeline loads PyTorch."""
    program = (
        "import sys, resource_manager.run_supervisor, tools_utilities.bridge.rented_process,"
        " tools_utilities.bridge.bridge_process; from tools_utilities.shard_format import"
        " shard_formats; from tools_utilities.sample_source import sample_sources;"
        " shard_formats(), sample_sources(); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_preflight_has_the_keys_that_are_sent_and_no_others():
    here = {
        "AWS_PROFILE": "lab", "AWS_SECRET_ACCESS_KEY": "mine", "GOOGLE_APPLICATION_CREDENTIALS": "f",
        "AWS_CA_BUNDLE": "ca.pem", "PATH": "/bin", "AZURE_STORAGE_ACCOUNT_KEY": "k",
    }  # fmt: skip
    made = foreign_environment({"AWS_SECRET_ACCESS_KEY": "sent"}, here)
    assert made == {
        "PATH": "/bin", "AWS_CA_BUNDLE": "ca.pem", "AWS_SECRET_ACCESS_KEY": "sent",
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("objects", "refused", "code", "said"),
    [
        pytest.param({}, "", 3, "no data files here", marks=pytest.mark.nightly),
        pytest.param({"in/a.jsonl": b"{oops\n"}, "", 3, "a.jsonl", marks=pytest.mark.nightly),
        ({"in/a.jsonl": b'{"id": 1}\n'}, "PUT", 4, "AccessDenied"),
    ],
)
def test_the_preflight_reads_the_source_and_writes_the_output(
    tmp_path, aws_environment, objects, refused, code, said
):
    def refuse(request: Any) -> Any:
        return xml_error(403, "AccessDenied", "no") if request.method == refused else None

    with StubCloud(objects) as s3:
        s3.script = refuse
        options = msgspec.structs.replace(
            changed().pipeline.source_options, transport_params={"endpoint_url": s3.url}
        )
        found = order(tmp_path, r2={"endpoint_url": s3.url}, pipeline={"source_options": options})
        with pytest.raises(PipelineError, match=said) as caught:
            begun(found, {})
        assert caught.value.exit_code == code
        assert set(s3.objects) == set(objects)


def test_a_log_is_read_line_by_line(tmp_path):
    path = tmp_path / "log"
    assert LogTail(path, 0).lines() == []
    path.write_text("earlier\n")
    tail = LogTail(path, 8)
    for added, lines in (("one\ntw", ["one"]), ("o\n", ["two"]), ("", [])):
        with path.open("a") as file:
            file.write(added)
        assert tail.lines() == lines


def test_a_repository_is_asked_before_anything_is_rented(tmp_path):
    with git_server(tmp_path / "served") as (folder, url):
        (folder / "quark").mkdir()
        (folder / "quark/a").write_text("a")
        number = commit(folder / "quark", "first", tag="v1")
        for ref in (None, "main", "v1", number, number[:8]):
            check_answers(f"{url}/quark", ref)
        with pytest.raises(UsageError, match=r"vast.repo_ref v2: .* has no such branch or tag"):
            check_answers(f"{url}/quark", "v2")
        with pytest.raises(UsageError, match=r"vast.repo_url .*/none"):
            check_answers(f"{url}/none", None)


def test_settings_are_whole(tmp_path, aws_environment):
    """What travels is read over there as it was written here."""
    found = order(tmp_path)
    text = msgspec.json.encode(found.order.settings)
    assert msgspec.json.decode(text, type=BridgeSettings) == found.order.settings
