"""Every error Quark raises on purpose, in one tree; the program turns each into one line and an exit code.

    QuarkError                           1   the run failed
    ├── UsageError (ValueError)          2   words, flags or settings that cannot be acted on
    │   └── InputNeededError             2   a choice is needed and there is no terminal to ask at
    ├── DataError                        3   the data is not there, or is not what it says
    │   ├── DataNotFoundError (FileNotFoundError)
    │   ├── RecordError (ValueError)         one record cannot be read
    │   ├── ChunkError                       a chunk of a shard is damaged, gone or another than listed
    │   ├── DamagedClaimError                the record of a shard's claim cannot be read
    │   └── IntegrityError                   bytes differ from the size or checksum promised
    ├── StoreError (OSError)             1   a store did not do what was asked
    │   ├── ObjectNotFoundError (FileNotFoundError)   3
    │   ├── ObjectReplacedError          6   the object changed since it was listed
    │   └── ConditionFailedError         1   a conditional put lost (412/409), or its outcome is unknown
    ├── AccessError (PermissionError)    4   credentials, permission, region, clock
    ├── CacheError (OSError)             2   an explicit cache folder cannot be used
    ├── ChangedError                     6   the plan or the data changed
    ├── ClaimError                       5   nothing to claim, or not the owner
    ├── ShardCrashError                  1   workers died one after the other on a shard
    ├── WorkerError                      1   a loader worker was lost
    ├── MachineError                     1   another machine is out of reach, or did not do what was asked
    ├── StillBilledError                 7   something rented may still be there, and cost money
    └── RunStoppedError                130   interrupted; `exit_code` 143 when terminated

Every error crosses process borders: it pickles to its message, hint and detail alone.
"""

import json
from typing import Any, ClassVar

LONGEST_TEXT, LONGEST_SECRET = 16_384, 4_096
"""Characters: of a message, whose words may be a stranger's; of what is masked in it."""
_CUT_WORDS = 64


class QuarkError(Exception):
    """The base: a message that holds the values, a hint that holds the next step.

    `detail` holds machine-readable fields (key, status, phase, line …) for `--json` and tests.
    Secrets in the texts are masked: an error is shown, logged and pickled by whoever catches it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", **detail: Any) -> None:
        carried = _unpack(message)
        if carried is not None:
            message, hint, detail = carried
        from tools_utilities.redaction import redact  # which raises such errors itself

        def told(text: str) -> str:
            # Before it is cut: a part of a secret would not be known for one.
            return bounded(redact(text[: LONGEST_TEXT + LONGEST_SECRET]), len(text))

        message = told(message)
        super().__init__(message)
        self.message_text = message
        self.hint = told(hint)
        self.detail: dict[str, Any] = {
            name: told(value) if isinstance(value, str) else value for name, value in detail.items()
        }

    def __str__(self) -> str:
        return self.message_text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message_text, self.hint, self.detail)

    def pack(self) -> None:
        """Make the error survive torch's DataLoader, which carries only a class and a traceback's text.

        The fields travel as a note at the traceback's end; `__init__` finds them there.
        """
        fields = [self.message_text, self.hint, self.detail]
        self.add_note(_NOTE + json.dumps(fields, default=str))


def bounded(text: str, num_chars: int) -> str:
    """Return a text as it can be shown, logged and sent: of what was `num_chars` long no more than anybody reads."""
    if num_chars <= LONGEST_TEXT + _CUT_WORDS:  # also what was cut before it was sent
        return text
    return f"{text[:LONGEST_TEXT]} … ({num_chars:,} characters)"


def said_by(error: BaseException) -> str:
    """Return kind and words of an error of anybody's; some cannot be shown."""
    try:
        words = str(error)
    except Exception as failure:  # noqa: BLE001 - whatever their own code raises
        words = f"it cannot be shown ({type(failure).__name__})"
    return f"{type(error).__name__}: {words}"


def error_lines(error: QuarkError) -> str:
    """Return what a script writes to stderr of an error: a line of what, and one of what to do next."""
    return f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else "")


_NOTE = "quark-error: "


def _unpack(text: str) -> tuple[str, str, dict[str, Any]] | None:
    """Return the fields of an error that torch re-raises from a loader worker, if it is one."""
    if not text.startswith("Caught ") or _NOTE not in text:
        return None
    try:
        message, hint, detail = json.loads(text.rpartition(_NOTE)[2].partition("\n")[0])
    except ValueError:
        return None
    return message, hint, detail


def _rebuild(kind: type[QuarkError], message: str, hint: str, detail: dict[str, Any]) -> QuarkError:
    return kind(message, hint=hint, **detail)


class UsageError(QuarkError, ValueError):
    """Words, flags or settings that cannot be acted on."""

    exit_code = 2


class InputNeededError(UsageError):
    """A choice is needed and nobody can be asked."""


class DataError(QuarkError):
    """The data is not there, or is not what it says it is."""

    exit_code = 3


class DataNotFoundError(DataError, FileNotFoundError):
    """No data where the command points."""


class RecordError(DataError, ValueError):
    """One record cannot be read; detail: key, record (number from 1 where known), offset."""


class ChunkError(DataError):
    """A chunk of a shard is damaged, gone, or another than the manifest has it; the other shards go on."""


class DamagedClaimError(DataError):
    """What stands where a shard's claim record should be is none: nobody can tell who holds the shard."""


class IntegrityError(DataError):
    """Bytes differ from the size or checksum they were promised to have."""


class StoreError(QuarkError, OSError):
    """A store did not do what was asked; detail: key, status, phase, attempts."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object is not in the store."""

    exit_code = 3


class ObjectReplacedError(StoreError):
    """The object is no longer the one that was listed."""

    exit_code = 6


class ConditionFailedError(StoreError):
    """A conditional put did not apply, or nobody can say whether it did: read again."""


class AccessError(QuarkError, PermissionError):
    """Credentials, permission, region or clock; detail: key, status, code, phase."""

    exit_code = 4


class CacheError(QuarkError, OSError):
    """A cache folder that was asked for cannot be used."""

    exit_code = 2


class ChangedError(QuarkError):
    """The plan or the data is no longer what was confirmed or recorded."""

    exit_code = 6


class ClaimError(QuarkError):
    """Nothing to claim, or the caller does not own the claim."""

    exit_code = 5


class ShardCrashError(QuarkError):
    """Workers died one after the other on a shard; it is left alone until an operator resets it."""


class WorkerError(QuarkError):
    """A loader worker has ended, or says nothing; detail: pid, exit_code (negative: a signal)."""


class MachineError(QuarkError):
    """A machine of a run cannot be reached, or did not do what it was asked; detail: where, phase."""


class StillBilledError(QuarkError):
    """What was rented could not be shown to be gone; detail: ids. The hint is the command to type."""

    exit_code = 7


class RunStoppedError(QuarkError):
    """The run was interrupted (130) or terminated (143) and has been saved."""

    exit_code = 130
