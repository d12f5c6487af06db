"""The N-th call of a store or of the file system fails, for all that Quark does with them."""

import errno
import random
from pathlib import Path

import pytest

from tests.reliability.failing_calls import FILE_KINDS, STORE_KINDS, Calls, failing_files
from tests.reliability.matrix import Cells, matrix
from tests.reliability.operations import OPERATIONS, Operation
from tools_utilities.errors import QuarkError

PER_KIND = 6
NIGHTLY_PER_KIND = 100_000
CASE_SECONDS = 60.0


def attempt(operation: Operation, calls: Calls, *, in_files: bool) -> object:
    """Do it with a fault; returns what came of it, or the error it ended in."""
    if not in_files:
        operation.store.calls = calls
    try:
        if in_files:
            with failing_files(calls, operation.folder):
                return operation.act()
        return operation.act()
    except KeyboardInterrupt as error:
        assert calls.kind == "interrupt"
        return error
    except QuarkError as error:
        return error
    except OSError as error:
        if error.errno != getattr(errno, calls.kind, None):
            raise
        return error
    finally:
        operation.store.calls = Calls()


def check(name: str, folder: Path, calls: Calls, right: object, *, in_files: bool) -> None:
    operation = OPERATIONS[name](folder)
    found = attempt(operation, calls, in_files=in_files)
    place = f"at {calls.struck} ({calls.strike})"
    if isinstance(found, BaseException):
        passing = not in_files and calls.kind != "interrupt"
        assert not passing, f"one passing failure {place} is not survived: {found!r}"
    else:
        assert found == right, f"SILENTLY WRONG {place}"
    assert operation.act() == right, f"WRONG AFTERWARDS {place}"


def strikes(num_calls: int, most: int, rng: random.Random) -> list[int]:
    """Return which calls fail: all, or some with the first and the last among them."""
    if num_calls <= most:
        return list(range(1, num_calls + 1))
    return sorted({1, num_calls, *rng.sample(range(1, num_calls + 1), most - 2)})


def run(cells: Cells, folder: Path, most: int) -> None:
    rng = random.Random(cells.seed)
    number = 0
    for name, make in OPERATIONS.items():
        right = make(folder / f"{name} right").act()
        kinds = [(kind, True) for kind in FILE_KINDS] + [(kind, False) for kind in STORE_KINDS]
        for kind, in_files in kinds:
            whole = make(folder / f"{name} {kind} {in_files}")
            if not (whole.uses_files if in_files else whole.uses_store):
                continue
            counted = Calls(kind)
            assert attempt(whole, counted, in_files=in_files) == right
            for strike in strikes(counted.num_calls, most, rng):
                case = f"{name}, {kind} at {'file' if in_files else 'store'} call {strike}"
                number += 1
                if cells.wanted(case):
                    with cells.case(case, CASE_SECONDS):
                        calls = Calls(kind, strike)
                        check(name, folder / str(number), calls, right, in_files=in_files)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300)
def test_some_calls_fail(request, tmp_path, aws_environment):
    with matrix("CALLS", request) as cells:
        run(cells, tmp_path, PER_KIND)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_every_call_fails_once(request, tmp_path, aws_environment):
    with matrix("CALLS", request) as cells:
        run(cells, tmp_path, NIGHTLY_PER_KIND)
