"""Precedence and provenance of settings; what quark.yaml may hold; roots and stores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools_utilities import project_file
from tools_utilities.errors import UsageError
from tools_utilities.setting_keys import SETTING_KEYS
from tools_utilities.settings import Settings, environment_variables, load_settings


def load(start: Path, environ=None, **given) -> Settings:
    return load_settings(start_dir=start, environ=environ or {}, **given)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = (tmp_path / "project").resolve()
    folder.mkdir()
    return folder


LAYERS = (
    "--override",
    "sentence",
    "environment QUARK_SEED",
    "quark.yaml",
    "user config",
    "default",
)


@pytest.mark.parametrize("first", range(len(LAYERS)))
def test_the_nearest_layer_gives_the_value_and_says_so(project: Path, tmp_path: Path, first: int):
    config = tmp_path / "config"
    if first <= 3:
        write(project / "quark.yaml", "seed: 3\n")
    if first <= 4:
        write(config / "quark" / "config.yaml", "seed: 4\n")
    environ = {"XDG_CONFIG_HOME": str(config)} | ({"QUARK_SEED": "2"} if first <= 2 else {})

    settings = load(
        project,
        environ,
        overrides={"seed": "0"} if first == 0 else {},
        sentence={"seed": 1} if first <= 1 else {},
    )

    assert settings.value("seed") == (first if first < 5 else 42)
    assert settings.source("seed") == LAYERS[first]


def test_the_user_config_is_below_home_without_xdg(project: Path, tmp_path: Path):
    write(tmp_path / ".config" / "quark" / "config.yaml", "seed: 9\n")

    assert load(project, {"HOME": str(tmp_path)}).value("seed") == 9


def test_values_are_typed_by_their_key_not_by_their_looks(project: Path):
    write(
        project / "quark.yaml",
        "lr: 1e-4\nname: no\nseed: 010\ntemplate: 1.50\nshuffle: off\nbetas: [0.9, 0.95]\n"
        "checkpoint_every: 10m\neval_every: {samples: 500}\nsteps: 1e3\nprofile: ~\n",
    )

    settings = load(project)

    assert settings.value("lr") == 0.0001
    assert settings.value("name") == "no"
    assert settings.value("seed") == 10
    assert settings.value("template") == "1.50"
    assert settings.value("shuffle") is False
    assert settings.value("betas") == [0.9, 0.95]
    assert settings.value("checkpoint_every") == {"seconds": 600}
    assert settings.value("eval_every") == {"samples": 500}
    assert settings.value("max_steps") == 1000
    assert settings.source("profile") == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lrr: 1\n", ("lrr", "quark.yaml")),
        ("lr: fast\n", ("lr", "fast", "number", "quark.yaml")),
        ("seed: -1\n", ("seed", "-1", "at least 0", "quark.yaml")),
        ("parallel: tp\n", ("parallel", "tp", "ddp, fsdp", "quark.yaml")),
        ("seed: [1]\n", ("seed", "quark.yaml")),
        ("- a\n", ("map", "quark.yaml")),
        ("seed: 1\nseed: 2\n", ("line 2", "seed", "quark.yaml")),
        ("buckets: x\n", ("buckets",)),
        ("buckets: {a: {url: x}}\n", ("buckets: a",)),
        ("buckets: {a: {uri: x, regoin: y}}\n", ("regoin",)),
        ("datasets: {a: 7, b: [x]}\n", ("datasets: b",)),
        ("models: {a: {cmd: x}}\n", ("models: a", "command")),
        ("buckets: {a: b1}\ndatasets: {a: d/x}\n", ("a", "both")),
    ],
)
def test_a_wrong_project_file_is_refused_with_what_and_where(project: Path, text: str, words):
    write(project / "quark.yaml", text)

    with pytest.raises(UsageError) as caught:
        load(project)

    assert all(word in str(caught.value) for word in words)


def test_an_unknown_key_names_the_nearest(project: Path):
    write(project / "quark.yaml", "batchsize: 4\n")

    with pytest.raises(UsageError) as caught:
        load(project)

    assert "batch_size" in caught.value.hint


def test_an_unknown_section_names_the_nearest(project: Path):
    write(project / "quark.yaml", "bucket: a\ndataset: {x: y}\n")

    with pytest.raises(UsageError) as caught:
        load(project)

    assert "datasets" in caught.value.hint


def test_a_project_file_that_is_not_text_is_refused(project: Path):
    (project / "quark.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UsageError, match=r"quark\.yaml"):
        load(project)


def test_a_bad_variable_names_itself(project: Path):
    with pytest.raises(UsageError, match="environment QUARK_LR: lr=fast") as caught:
        load(project, {"QUARK_LR": "fast"})

    assert caught.value.detail["source"] == "environment QUARK_LR"
    assert caught.value.detail["accepted"] == "a number"


def test_an_unknown_override_is_an_error_and_a_slot_that_is_no_setting_is_not(project: Path):
    with pytest.raises(UsageError, match="sede"):
        load(project, overrides={"sede": 1})

    settings = load(
        project, sentence={"data": ["x/"], "model": "quark", "batch_size": {"scale": 2}}
    )
    assert settings.value("batch_size") == {"scale": 2}


@pytest.mark.parametrize("key", [key.name for key in SETTING_KEYS if key.name != "root"])
def test_every_key_is_read_from_its_variable(project: Path, key: str):
    kinds = {
        "text": "words", "int": "7", "float": "0.5", "bool": "true", "every": "5m",
        "texts": "a,b", "floats": "0.5,0.6",
    }  # fmt: skip
    setting = next(k for k in SETTING_KEYS if k.name == key)
    text = setting.choices[-1] if setting.choices else kinds[setting.kind]
    if setting.kind == "float" and (setting.minimum or 0) > float(text):
        text = str(setting.minimum)

    settings = load(project, {f"QUARK_{key.upper()}": text})

    assert settings.source(key) == f"environment QUARK_{key.upper()}"
    assert settings.is_set(key)


def test_documented_variables_are_read_below_our_own_names(project: Path):
    environ = {"CACHE_DIR": "/c", "CACHE_GB": "1.5", "AWS_MAX_CONCURRENCY": "3"}

    settings = load(project, environ | {"QUARK_CACHE_DIR": "/q"})

    assert settings.value("cache_dir") == "/q"
    assert settings.cache_bytes == 1_500_000_000
    assert settings.source("fetch_concurrency") == "environment AWS_MAX_CONCURRENCY"


def test_an_empty_variable_is_unset(project: Path):
    assert load(project, {"CACHE_GB": "", "QUARK_BUCKET": ""}).non_defaults() == []


def test_variables_that_mean_nothing_are_told(project: Path):
    warnings = load(project, {"QUARK_SEDE": "1", "QUARK_SEED": "1"}).warnings

    assert len(warnings) == 1
    assert "QUARK_SEDE" in warnings[0]
    assert "QUARK_SEED?" in warnings[0]


def test_every_variable_is_told_with_its_meaning():
    variables = {variable.name: variable for variable in environment_variables()}

    assert {f"QUARK_{key.name.upper()}" for key in SETTING_KEYS} <= set(variables)
    assert {"CACHE_DIR", "CACHE_GB", "AWS_MAX_CONCURRENCY", "QUARK_ROOT"} <= set(variables)
    assert all(variable.meaning for variable in variables.values())
    assert len(variables) == len(environment_variables())


def test_the_cache_budget_given_closest_to_the_command_wins(project: Path):
    write(project / "quark.yaml", "cache_bytes: 5\n")

    assert load(project).cache_bytes == 5
    assert load(project, {"CACHE_GB": "2"}).cache_bytes == 2_000_000_000
    assert load(project, overrides={"cache_gb": "1", "cache_bytes": "7"}).cache_bytes == 7


def test_non_defaults_name_their_sources(project: Path):
    write(project / "quark.yaml", "lr: 0.1\n")

    settings = load(project, {"QUARK_SEED": "7"})

    assert settings.non_defaults() == [
        ("seed", 7, "environment QUARK_SEED"),
        ("lr", 0.1, "quark.yaml"),
    ]


@pytest.mark.parametrize("marker", ["quark.yaml", ".git"])
def test_the_root_is_the_nearest_ancestor_with_a_marker(project: Path, marker: str):
    (project / marker).mkdir() if marker == ".git" else write(project / marker, "")
    below = project / "a" / "b"
    below.mkdir(parents=True)

    settings = load(below, {"QUARK_ROOT": str(project / "a")})

    assert settings.root == project
    assert settings.value("root") == str(project)


def test_without_a_marker_the_root_is_quark_root_then_the_working_directory(project: Path):
    other = project / "other"
    other.mkdir()

    assert load(project).root == project
    settings = load(project, {"QUARK_ROOT": str(other)})
    assert (settings.root, settings.source("root")) == (other, "environment QUARK_ROOT")


def test_a_given_root_wins_over_all_and_must_exist(project: Path):
    write(project / "quark.yaml", "root: data\n")
    (project / "data").mkdir()
    (project / "x").mkdir()

    assert load(project).root == project / "data"
    assert load(project, overrides={"root": "x"}).root == project / "x"
    with pytest.raises(UsageError, match=r"root=.*nowhere"):
        load(project, overrides={"root": "nowhere"})


def test_a_root_reached_through_a_link_is_resolved(project: Path, tmp_path: Path):
    write(project / "quark.yaml", "")
    (tmp_path / "link").symlink_to(project)

    assert load(tmp_path / "link").root == project


def test_data_mode_follows_the_bucket(project: Path):
    assert load(project).value("data_mode") == "local"
    assert load(project).store_uri == f"file://{project}"
    streaming = load(project, {"QUARK_BUCKET": "b1"})
    assert (streaming.value("data_mode"), streaming.store_uri) == ("streaming", "s3://b1")
    local = load(project, {"QUARK_BUCKET": "b1"}, overrides={"data_mode": "local"})
    assert local.store_uri == f"file://{project}"
    with pytest.raises(UsageError, match="no bucket"):
        _ = load(project, overrides={"data_mode": "streaming"}).store_uri


@pytest.mark.parametrize(
    ("bucket", "uri"),
    [
        ("genomes", "s3://genomes"),
        ("s3://genomes/", "s3://genomes"),
        ("gs://g", "gs://g"),
        ("file:///mnt/data/", "file:///mnt/data"),
        ("/mnt/data", "file:///mnt/data"),
        ("memory://m", "memory://m"),
    ],
)
def test_a_bucket_is_a_name_a_uri_or_a_folder(project: Path, bucket: str, uri: str):
    assert load(project, overrides={"bucket": bucket}).bucket_uri == uri


@pytest.mark.parametrize("bucket", ["s3://b/some/prefix", "two words", "s3://", "data/x"])
def test_what_is_no_bucket_is_refused(project: Path, bucket: str):
    with pytest.raises(UsageError, match="--override"):
        _ = load(project, overrides={"bucket": bucket}).bucket_uri


def test_a_bucket_alias_brings_its_own_options(project: Path):
    write(
        project / "quark.yaml",
        "bucket: main\nregion: eu-west-1\nbuckets:\n  main:\n    uri: s3://genomes\n"
        "    endpoint_url: http://127.0.0.1:9000\n    anonymous: true\n  other: s3://b2\n"
        "datasets: {alpha: data/alpha}\n",
    )

    settings = load(project)

    assert settings.aliases == {
        "main": "s3://genomes", "other": "s3://b2", "alpha": "data/alpha",
    }  # fmt: skip
    spec = settings.store_spec()
    assert (spec.uri, spec.endpoint_url) == ("s3://genomes", "http://127.0.0.1:9000")
    assert (spec.region, spec.anonymous) == ("eu-west-1", True)
    assert settings.store_spec("other").endpoint_url is None
    assert settings.store_spec("s3://genomes") == spec
    nearer = load(project, {"QUARK_ENDPOINT_URL": "http://127.0.0.1:1"}).store_spec()
    assert nearer.endpoint_url == "http://127.0.0.1:1"


def test_models_name_the_users_own_programs(project: Path):
    write(
        project / "quark.yaml",
        "models:\n  mine: {command: \"python 'my train.py' --fast\"}\n  list: {command: [a, b]}\n",
    )

    assert load(project).models == {
        "mine": ("python", "my train.py", "--fast"),
        "list": ("a", "b"),
    }


def test_paths_are_relative_to_what_gave_them(project: Path, tmp_path: Path):
    below = project / "sub"
    below.mkdir()
    write(project / "quark.yaml", "cache_dir: cache\n")

    settings = load(below, {"HOME": str(tmp_path)}, overrides={"text_key": "t"})

    assert settings.path("cache_dir") == project / "cache"
    assert settings.path("out_dir") == project / "runs"
    assert load(below, overrides={"out_dir": "here"}).path("out_dir") == below / "here"
    home = load(below, {"HOME": str(tmp_path)}, overrides={"cache_dir": "~/c"})
    assert home.path("cache_dir") == tmp_path / "c"


def test_what_the_environment_says_of_the_terminal(project: Path):
    facts = {"CI": "true", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "72"}

    environment = load(project, facts).environment

    assert (environment.ci, environment.no_color) == (True, True)
    assert (environment.term, environment.columns) == ("dumb", 72)
    quiet = load(project, {"CI": "false", "COLUMNS": "wide"}).environment
    assert (quiet.ci, quiet.no_color, quiet.columns) == (False, False, None)


def test_importing_it_is_cheap():
    code = (
        "import sys, tools_utilities.settings, resource_manager.dataset_paths, "
        "tools_utilities.scripts.dataset_discovery; from pathlib import Path; "
        "tools_utilities.settings.load_settings(start_dir=Path('/'), environ={}); "
        "print([m for m in ('yaml', 'torch', 'boto3', 'pyarrow', 'obstore', 'prompt_toolkit') "
        "if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_project_file_of_another_user_that_was_come_upon_is_not_read(tmp_path, monkeypatch):
    """Anybody can put a quark.yaml into a folder above: it names programs, and where data goes."""
    (tmp_path / "quark.yaml").write_text("models: {quark: {command: 'sh evil.sh'}}\n")
    (tmp_path / "below").mkdir()
    environ = {"HOME": str(tmp_path / "home")}

    def loaded(**more: str) -> Settings:
        return load_settings(start_dir=tmp_path / "below", environ={**environ, **more})

    assert loaded().models  # one's own
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    if (tmp_path / "quark.yaml").stat().st_uid == 0:
        monkeypatch.setattr(project_file, "_SYSTEM", -1)  # this test runs as root
    with pytest.raises(UsageError, match="belongs to another user") as caught:
        loaded()
    assert f"QUARK_TRUSTED_PROJECTS={tmp_path}" in caught.value.hint
    assert loaded(QUARK_TRUSTED_PROJECTS=f"/elsewhere:{tmp_path}").models
    assert loaded(QUARK_TRUSTED_PROJECTS="*").models
    with pytest.raises(UsageError):
        loaded(QUARK_TRUSTED_PROJECTS=str(tmp_path / "below"))
    # Who names the folder has chosen it.
    assert load_settings(
        start_dir=tmp_path / "below", environ=environ, overrides={"root": str(tmp_path)}
    ).models
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert loaded().models
