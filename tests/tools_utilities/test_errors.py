"""Errors keep kind, words and fields across a process border, and their exit codes."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from tools_utilities import errors
from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
    RecordError,
    RunStoppedError,
    UsageError,
    said_by,
)

KINDS: list[type[QuarkError]] = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, QuarkError)
    ),
    key=lambda kind: kind.__name__,
)


def make(kind: type[QuarkError]) -> QuarkError:
    return kind("what happened to s3://b/k", hint="what to do", key="k", line=3, nested={"a": [1]})


def fail_with(kind: type[QuarkError]) -> None:
    raise make(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_pickling_keeps_everything(kind):
    error = make(kind)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == "what happened to s3://b/k"
    assert copy.hint == "what to do"
    assert copy.detail == {"key": "k", "line": 3, "nested": {"a": [1]}}
    assert copy.exit_code == error.exit_code


def test_errors_cross_a_real_process_border():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for kind in (RecordError, AccessError, ObjectNotFoundError, ConditionFailedError):
            error = pool.submit(fail_with, kind).exception(timeout=60)
            assert type(error) is kind
            assert isinstance(error, QuarkError)
            assert str(error) == "what happened to s3://b/k"
            assert (error.hint, error.detail["line"]) == ("what to do", 3)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (UsageError, ValueError),
        (DataNotFoundError, FileNotFoundError),
        (ObjectNotFoundError, FileNotFoundError),
        (RecordError, ValueError),
        (AccessError, PermissionError),
        (ConditionFailedError, OSError),
    ],
)
def test_callers_may_catch_the_builtin_kind(kind, builtin):
    with pytest.raises(builtin) as caught:
        fail_with(kind)
    assert str(caught.value) == "what happened to s3://b/k"


def test_exit_codes_are_the_documented_ones():
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    assert codes == {
        "QuarkError": 1,
        "UsageError": 2,
        "InputNeededError": 2,
        "DataError": 3,
        "DataNotFoundError": 3,
        "RecordError": 3,
        "ChunkError": 3,
        "DamagedClaimError": 3,
        "IntegrityError": 3,
        "StoreError": 1,
        "ObjectNotFoundError": 3,
        "ObjectReplacedError": 6,
        "ConditionFailedError": 1,
        "AccessError": 4,
        "CacheError": 2,
        "ChangedError": 6,
        "ClaimError": 5,
        "ShardCrashError": 1,
        "WorkerError": 1,
        "MachineError": 1,
        "StillBilledError": 7,
        "RunStoppedError": 130,
    }
    assert RunStoppedError("stopped").exit_code == 130


def test_words_without_end_are_cut_and_secrets_across_the_cut_are_masked():
    """An error of a program of one's own may hold megabytes: masking those took minutes."""
    for place in (16_384 - 30, 16_384 - 3, 16_384 + 3):
        text = "x" * place + " https://planted-name@host/ " + "y" * 8_000_000
        error = RecordError(text, hint=text, key=text)
        for told in (str(error), error.hint, error.detail["key"]):
            assert len(told) < 17_000
            assert "planted" not in told
            assert told.endswith(f"({len(text):,} characters)")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here


def test_an_error_that_cannot_be_shown_is_told_all_the_same():
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert said_by(SilentError()) == "SilentError: it cannot be shown (RuntimeError)"
    assert said_by(ValueError("words")) == "ValueError: words"
