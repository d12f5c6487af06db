"""Tickets: how a process that claims and exits hands its claim to the process that completes it.

One small file a shard in the state folder, readable by its owner only.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared


@prepared
class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What a later process needs to act as the claim's owner."""

    gen: int
    owner: str
    version: str | None
    """The version token at the time of the claim; the record is read again before it is used."""


class TicketFolder:
    """The tickets of this user on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, record_uri: str) -> Path:
        """Return where the ticket of a claim record (its full URI) is kept."""
        return self._folder / f"{hashlib.sha256(record_uri.encode()).hexdigest()[:32]}.json"

    def save(self, record_uri: str, ticket: Ticket) -> Path:
        """Keep a ticket, atomically, mode 0600."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(record_uri)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(ticket))
        temporary.replace(path)
        return path

    def load(self, record_uri: str) -> Ticket | None:
        """Return the ticket of a claim record, or None when this machine has none."""
        return read_ticket(self.path(record_uri))

    def drop(self, record_uri: str) -> None:
        """Forget a ticket; a missing one is not an error."""
        self.path(record_uri).unlink(missing_ok=True)


def read_ticket(path: Path) -> Ticket | None:
    """Return the ticket in a file, or None when there is no such file.

    Raises:
        UsageError: the file is not a ticket.
    """
    try:
        return decode_json(path.read_bytes(), type=Ticket)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path}: not a claim ticket: {error}", hint="Claim the shard again."
        ) from error
