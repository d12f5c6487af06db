"""Where zstd frames end, by their headers alone (RFC 8878, section 3.1): nothing is decoded."""

_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50  # its lowest four bits may be anything
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3


class ZstdFrameError(ValueError):
    """The bytes are no zstd frame."""


class ZstdFrames:
    """Feed it an object's bytes in order; `complete` says whether they end where a frame ends."""

    def __init__(self) -> None:
        self.num_frames = 0
        self._next = self._magic
        self._need_bytes = 4
        self._skip_bytes = 0
        self._held = bytearray()
        self._has_checksum = False

    @property
    def complete(self) -> bool:
        """Whether every frame so far is whole; true before the first byte."""
        at_start = self._next == self._magic
        return at_start and not self._held and not self._skip_bytes

    def feed(self, piece: bytes) -> None:
        """Walk on; raises ZstdFrameError where a header cannot be one."""
        rest = memoryview(piece)
        while rest:
            if self._skip_bytes:
                skipped = min(self._skip_bytes, len(rest))
                self._skip_bytes -= skipped
                rest = rest[skipped:]
                continue
            wanted = self._need_bytes - len(self._held)
            self._held += rest[:wanted]
            rest = rest[wanted:]
            if len(self._held) == self._need_bytes:
                value = int.from_bytes(self._held, "little")
                self._held.clear()
                self._next(value)

    def _magic(self, value: int) -> None:
        if value == _MAGIC:
            self._next, self._need_bytes = self._descriptor, 1
        elif value & ~0xF == _SKIPPABLE_MAGIC:
            self._next, self._need_bytes = self._skippable, 4
        else:
            raise ZstdFrameError(f"no frame begins with 0x{value:08x}")

    def _skippable(self, value: int) -> None:
        self._skip_bytes = value
        self._end_frame()

    def _descriptor(self, value: int) -> None:
        single_segment, self._has_checksum = bool(value & 0x20), bool(value & 0x04)
        window = 0 if single_segment else 1
        dictionary = (0, 1, 2, 4)[value & 3]
        content_size = (1 if single_segment else 0, 2, 4, 8)[value >> 6]
        self._skip_bytes = window + dictionary + content_size
        self._next, self._need_bytes = self._block, 3

    def _block(self, value: int) -> None:
        kind, num_bytes = value >> 1 & 3, value >> 3
        if kind == _RESERVED_BLOCK:
            raise ZstdFrameError("a block of the reserved type")
        self._skip_bytes = 1 if kind == _RLE_BLOCK else num_bytes
        if value & 1:
            self._skip_bytes += 4 if self._has_checksum else 0
            self._end_frame()

    def _end_frame(self) -> None:
        self.num_frames += 1
        self._next, self._need_bytes = self._magic, 4
