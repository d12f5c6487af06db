"""JSON from outside, decoded so that whatever is wrong with it is one kind of error."""

from typing import Any, TypeVar, overload

import msgspec

_Type = TypeVar("_Type")


@overload
def decode_json(data: bytes | str) -> Any: ...
@overload
def decode_json(data: bytes | str, *, type: type[_Type]) -> _Type: ...
def decode_json(data: bytes | str, *, type: Any = Any) -> Any:  # noqa: A002 - msgspec's name
    """Return what `msgspec.json.decode` does.

    Raises:
        msgspec.DecodeError: it is no such JSON; also where it is no UTF-8 or nested too deep, for
            which msgspec raises errors that are none of its own.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error
