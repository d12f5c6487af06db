"""Settings are typed by their key, never by their looks (case B47)."""

import math

import pytest

from tools_utilities.errors import UsageError
from tools_utilities.setting_keys import (
    KEYS_BY_NAME,
    SETTING_KEYS,
    check_limits,
    find_key,
    nearest_key,
    parse_value,
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("train_prefix", "data/year=2019/month=10/", "data/year=2019/month=10/"),
        ("name", "epoch=9-step=1.ckpt", "epoch=9-step=1.ckpt"),
        ("ranges", "0-250,250-500", ["0-250", "250-500"]),
        ("template", "x # y @ z", "x # y @ z"),
        ("lr", "1e-4", 0.0001),
        ("lr", "1E-4", 0.0001),
        ("lr", ".0001", 0.0001),
        ("lr", "1_000.5", 1000.5),
        ("epochs", "1e1", 10.0),
        ("max_steps", "1e1", 10),
        ("max_steps", "1_000", 1000),
        ("seed", "010", 10),
        ("seed", "1_000", 1000),
        ("seed", "+7", 7),
        *[
            ("name", text, text)
            for text in ("no", "on", "1:30", "~", "null", "2024-01-01", "", "010")
        ],
        *[("shuffle", text, True) for text in ("on", "TRUE", "true", "yes", "1", "On")],
        *[("shuffle", text, False) for text in ("off", "FALSE", "no", "0")],
        ("text_key", "", ""),
        ("precision", "BF16", "bf16"),
        ("betas", "0.9, 0.99", [0.9, 0.99]),
        ("checkpoint_every", "500", {"steps": 500}),
        ("checkpoint_every", "500steps", {"steps": 500}),
        ("checkpoint_every", "1 step", {"steps": 1}),
        ("checkpoint_every", "10m", {"seconds": 600}),
        ("checkpoint_every", "1.5h", {"seconds": 5400}),
        ("checkpoint_every", "90s", {"seconds": 90}),
        ("eval_every", "5000samples", {"samples": 5000}),
    ],
)
def test_a_value_has_the_type_of_its_key(name, text, value):
    parsed = parse_value(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("seed", text) for text in ("0x10", "", "1.5", "ten", "1e", "-1", "1 0", "nan", "inf")],
        *[
            ("lr", text)
            for text in ("", "0", "-1e-4", "nan", "inf", "1e999", "1e-4x", "0,1", "true")
        ],
        *[("shuffle", text) for text in ("", "maybe", "2", "None")],
        *[("precision", text) for text in ("", "fp8")],
        *[("max_steps", text) for text in ("0", "-5", "2.5")],
        *[("max_drop", text) for text in ("1.01", "-0.1")],
        *[("checkpoint_every", text) for text in ("", "0", "10 parsecs", "-5", "m")],
        ("betas", "0.9,x"),
        ("batch_size", "0"),
    ],
)
def test_a_value_the_key_does_not_take_is_refused_by_name(name, text):
    with pytest.raises(UsageError) as caught:
        parse_value(name, text)
    assert caught.value.exit_code == 2
    assert caught.value.detail["key"] == name
    assert name in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("alias", "key"), [("steps", "max_steps"), ("learning_rate", "lr"), ("bs", "batch_size")]
)
def test_aliases_mean_their_key(alias, key):
    assert find_key(alias).name == key


@pytest.mark.parametrize(
    ("typed", "meant"), [("epoch", "epochs"), ("learning_rte", "learning_rate"), ("sede", "seed")]
)
def test_a_misspelt_key_is_answered_with_the_nearest(typed, meant):
    with pytest.raises(UsageError) as caught:
        find_key(typed)
    assert caught.value.detail["nearest"] == meant
    assert meant in caught.value.hint


def test_a_key_like_no_other_has_no_nearest():
    assert nearest_key("xyzzyplugh") is None
    with pytest.raises(UsageError, match="unknown setting"):
        find_key("xyzzyplugh")


def test_names_and_aliases_are_used_once():
    names = [name for key in SETTING_KEYS for name in (key.name, *key.aliases)]
    assert len(names) == len(set(names)) == len(KEYS_BY_NAME)


@pytest.mark.parametrize("key", SETTING_KEYS, ids=lambda key: key.name)
def test_every_default_is_a_value_the_key_takes(key):
    assert key.help
    assert (key.kind == "choice") == bool(key.choices)
    if key.default is None:
        return
    if key.kind == "choice":
        assert key.default in key.choices
    expected = {"bool": bool, "int": int, "float": float, "text": str, "choice": str}
    if key.kind in expected:
        assert type(key.default) is expected[key.kind]
    check_limits(key, key.default)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_limits_refuse_what_is_not_finite(value):
    with pytest.raises(UsageError):
        check_limits(find_key("lr"), value)
