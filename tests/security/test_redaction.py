"""What is masked, what is not, and where: the one function that output, logs and files go through."""

import io
import json
import logging
import os
import pickle
import stat

import pytest

from tests.projects import write_group
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import StoreError, UsageError
from tools_utilities.private_files import open_to_append, write_private
from tools_utilities.redacted_logs import RedactedRecord
from tools_utilities.redaction import (
    KNOWN,
    MASK,
    KnownSecrets,
    is_secret_name,
    redact,
    redact_data,
    refuse_signed,
)
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.terminal_session import history_in
from tools_utilities.terminal_text import Span

SIGNED = "https://host/b/x.jsonl?X-Amz-Signature=0123abcd4567&versionId=7"
HIDDEN = "s3cretV4lue/of+something"


@pytest.fixture
def known() -> KnownSecrets:
    found = KnownSecrets()
    found.add_environment(
        {"SOME_TOKEN": HIDDEN, "HOME": "/home/somebody", "OTHER_KEY_FILE": "/x/y/z/key"}
    )
    return found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SIGNED, f"https://host/b/x.jsonl?X-Amz-Signature={MASK}&versionId=7"),
        ("see ?sv=2024&sig=AbC%2Fd&se=1 here", f"see ?sv=2024&sig={MASK}&se=1 here"),
        ("?AWSAccessKeyId=abc&Signature=d%2Be%3D", f"?AWSAccessKeyId={MASK}&Signature={MASK}"),
        ("https://name:pa55@host/x", f"https://{MASK}@host/x"),
        ("keys AKIAABCDEFGHIJKLMNOP and", f"keys {MASK} and"),
        ("HF hf_abcdefghijklmnopqrstuv.", f"HF {MASK}."),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7", f"aws_secret_access_key = {MASK}"),
        ('{"session_token": "abcdef0123"}', f'{{"session_token": "{MASK}"}}'),
        ("{'X-Amz-Security-Token': b'FQoGZXIvYXdz'}", f"{{'X-Amz-Security-Token': b'{MASK}'}}"),
        ("x-amz-security-token:FQoGZXIvYXdz", f"x-amz-security-token:{MASK}"),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=AKIAABCDEFGHIJKLMNOP/2026, Signature=00ff00ff00ff",
            f"Authorization: AWS4-HMAC-SHA256 Credential={MASK}, Signature={MASK}",
        ),
        ("Bearer abc.def-012345", f"Bearer {MASK}"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the signature does not match: the secret key is wrong",
        "partition_key=label eos_id=2 token_dtype=uint16 max_tokens=100000",
        "s3://bucket/data/key=value/train-00000.jsonl",
        "Basic documentation: see the tokenizer at tokenizer.json",
        "2026-11-28 10:00:00 step 12: loss 3.25, 1,024 tokens/s",
        "quark 'train quark with s3://bucket/x@v2/train- for 2 epochs'",
        "mail me@example.org, or see http://example.org/a?page=2",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_known_values_are_masked_wherever_they_stand(known: KnownSecrets) -> None:
    assert (
        known.redact(f"x{HIDDEN}y /home/somebody /x/y/z/key") == "x***y /home/somebody /x/y/z/key"
    )
    known.add("short", None, "")
    assert known.redact("short") == "short"


def test_the_longer_of_two_known_values_is_masked_whole(known: KnownSecrets) -> None:
    known.add(f"{HIDDEN}-and-more")
    assert known.redact(f"{HIDDEN}-and-more") == MASK


def test_a_typed_signature_is_known_as_typed_and_as_sent(known: KnownSecrets) -> None:
    known.add_typed("get 'https://h/x?X-Amz-Security-Token=ab%2Bcd%2Fef012'")
    assert known.redact("sent ab+cd/ef012, typed ab%2Bcd%2Fef012") == f"sent {MASK}, typed {MASK}"


def test_a_mask_may_be_as_wide_as_the_secret() -> None:
    masked = redact(f"get {SIGNED} now", same_width=True)
    assert len(masked) == len(f"get {SIGNED} now")
    assert "0123abcd" not in masked


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_SESSION_TOKEN", True),
        ("hf-token", True),
        ("VAST_API_KEY", True),
        ("AZURE_STORAGE_ACCOUNT_KEY", True),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", False),
        ("QUARK_TOKENIZER", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("QUARK_MAX_TOKENS", False),
        ("PARTITION_KEY", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:  # noqa: FBT001 - a table's column
    assert is_secret_name(name) is secret


def test_plain_data_is_masked_by_name_and_by_shape() -> None:
    data = {"api_key": "abc", "at": [SIGNED, 3, None, True], "nested": {"n": 1.5}, "token": ""}
    assert redact_data(data) == {
        "api_key": MASK,
        "at": [redact(SIGNED), 3, None, True],
        "nested": {"n": 1.5},
        "token": "",
    }


def test_errors_hold_no_secret_and_pickle_none() -> None:
    error = StoreError(f"could not get {SIGNED}", hint=f"try {SIGNED}", key=SIGNED, status=403)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    for one in (error, again):
        assert "0123abcd" not in f"{one} {one!r} {one.hint} {one.detail} {one.args}"
        assert one.detail["status"] == 403
    assert b"0123abcd" not in pickle.dumps(error)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_console_shows_none_folded_or_not(as_json: bool) -> None:  # noqa: FBT001 - a column
    out, err = io.StringIO(), io.StringIO()
    console = Console(Surroundings(json=as_json), stdin=io.StringIO(), stdout=out, stderr=err)
    secret = "0123abcd4567"
    console.result(["see " + SIGNED, [Span("in two "), Span("?sig=01", "bold"), Span("23abcd4567")]],
                   {"secret_key": secret, "uri": SIGNED, "n": 1})  # fmt: skip
    console.note(f"note {SIGNED}")
    console.error(ValueError(f"an error {SIGNED}"))
    console.event({"event": "warning", "message": SIGNED})
    assert secret[:8] not in out.getvalue() + err.getvalue()
    assert "23abcd" not in out.getvalue()
    if as_json:
        assert json.loads(out.getvalue().splitlines()[0])["n"] == 1


def test_a_record_is_clean_for_every_handler_formatter_and_filter() -> None:
    KNOWN.add(HIDDEN)
    error = ValueError(HIDDEN)
    info = (type(error), error, error.__traceback__)
    record = RedactedRecord("n", logging.ERROR, __file__, 1, "say %s", (HIDDEN,), info)
    out = io.StringIO()
    for style in (None, logging.Formatter("%(name)s|%(message)s")):
        handler = logging.StreamHandler(out)
        handler.setFormatter(style)
        handler.handle(record)
    assert HIDDEN not in out.getvalue()
    assert out.getvalue().count("ValueError: ***") == 2
    assert HIDDEN not in str(record.__dict__["exc_text"])


def test_the_history_keeps_lines_without_their_secrets(tmp_path) -> None:
    history = history_in(tmp_path / "state")
    history.append_string(f"inspect '{SIGNED}'")
    history.append_string("list runs")
    kept = (tmp_path / "state" / "history").read_text()
    assert "0123abcd" not in kept
    assert "list runs" in kept
    assert stat.S_IMODE((tmp_path / "state" / "history").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "address",
    [SIGNED, "https://h/x?sig=abcdefgh", "s3://name:word@bucket/x", "https://h/x?token=abc"],
)
def test_addresses_with_a_secret_are_refused_where_they_would_be_kept(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_signed(address, "a run")
    assert "***" in str(caught.value)
    with pytest.raises(UsageError):
        StreamingManager(address)


@pytest.mark.parametrize(
    "address", ["https://h/x?page=2", "s3://b/me@x/", "data/token=1", "s3://b"]
)
def test_other_addresses_are_not(address: str) -> None:
    refuse_signed(address, "a run")


@pytest.mark.parametrize("key", ["endpoint_url", "bucket", "train_prefix", "checkpoint_dir"])
def test_no_setting_takes_an_address_with_a_secret(key: str, tmp_path) -> None:
    from tools_utilities.settings import load_settings

    write_group(tmp_path / "data")
    with pytest.raises(UsageError) as caught:
        load_settings(start_dir=tmp_path, environ={}, overrides={key: "https://me:pa55word@host/x"})
    assert "pa55word" not in str(caught.value)
    assert key in str(caught.value)


def test_private_files_are_private_at_once_and_whatever_was_there(tmp_path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "old").write_text("x")
        write_private(tmp_path / "old", b"new")
        write_private(tmp_path / "fresh", b"new")
        os.close(open_to_append(tmp_path / "appended"))
    finally:
        os.umask(before)
    assert (tmp_path / "old").read_bytes() == b"new"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"old": 0o600, "fresh": 0o600, "appended": 0o600}


@pytest.mark.parametrize("scheme", ["s3", "r2", "gs", "az"])
def test_the_bucket_at_an_endpoint_is_no_secret(scheme: str) -> None:
    """Every message of a store that is not Amazon's named it `***`."""
    told = f"{scheme}://genomes@127.0.0.1:9000/data/x.jsonl does not exist"
    assert redact(told) == told
    assert redact(f"{scheme}://name:planted-key@genomes/x") == f"{scheme}://***@genomes/x"
    assert redact("https://planted@host/x") == "https://***@host/x"
