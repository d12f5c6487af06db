"""A process that writes chunks: jobs as JSON lines on stdin, replies on stdout; ends with its input."""

import sys

from tools_utilities.chunk_spool import (
    ChunkJob,
    ChunkReply,
    decode_message,
    encode_message,
    reply_to,
)
from tools_utilities.prepared_types import prepared
from tools_utilities.redaction import guard_process

prepared(ChunkJob)
prepared(ChunkReply)


def main() -> int:
    """Do jobs until there are no more."""
    guard_process()
    for line in sys.stdin.buffer:
        reply = reply_to(decode_message(line, ChunkJob))
        sys.stdout.buffer.write(encode_message(reply) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
