"""Reads failures out of what boto3 and obstore raise."""

import re
from typing import Any

from tools_utilities.errors import AccessError, QuarkError, UsageError
from tools_utilities.object_stores._failures import Failure, printable

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_ELEMENT = re.compile(r"<(\w+)>([^<]*)</\1>")
_SIGNED_IN = "Check the profile, log in (`aws sso login`) or set AWS_ACCESS_KEY_ID and its secret."


def of_client_error(error: Any) -> Failure:
    """Read a botocore ClientError."""
    response = error.response
    said = response.get("Error", {})
    metadata = response.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})
    code = str(said.get("Code", ""))
    status = metadata.get("HTTPStatusCode")
    fields = {name: str(value) for name, value in said.items() if name not in {"Code", "Message"}}
    # A HEAD has no body: botocore puts the status in the code and the reason in the message.
    bare = code.isdigit()
    return Failure(
        status=int(status) if status else None,
        code="" if bare else code,
        message="" if bare else str(said.get("Message", "")),
        fields=fields,
        region=headers.get("x-amz-bucket-region") or fields.get("Region"),
    )


def of_obstore_error(error: BaseException) -> Failure:
    """Read an obstore error: its text holds the status and the body, nothing holds the headers."""
    text = str(error).partition("\n\nDebug source:")[0]
    found = _STATUS.search(text)
    if "redirect without LOCATION" in text:
        return Failure(status=301, code="PermanentRedirect")
    if "error following redirect" in text:
        return Failure(status=307, code="TemporaryRedirect")
    if found is None and "HTTP error" not in text:
        return Failure(status=None, code="ClientError", message=text.partition("\n")[0])
    if found is None:
        kind = "time-out" if "kind: Timeout" in str(error) else "the connection broke"
        return Failure(status=None, message=kind, connecting="kind: Connect" in str(error))
    elements = dict(_ELEMENT.findall(text[found.end() :]))
    code, message = elements.pop("Code", ""), elements.pop("Message", "")
    region = elements.get("Region")
    return Failure(int(found[1]), code, _plain(message), elements, region)


def _plain(text: str) -> str:
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    return text


def is_still_expired(error: Exception) -> bool:
    """Say whether this is what botocore raises, without a type of its own, of keys born expired."""
    return type(error) is RuntimeError and "still expired" in str(error)


def of_botocore_error(error: Exception, where: str) -> Failure | QuarkError:
    """Read what boto3 raises without an answer: no credentials, no connection, bad parameters."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    unsigned = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.ConfigNotFound,
        exceptions.ConfigParseError,
    )
    if is_still_expired(error):
        return AccessError(
            f"{where}: the credentials have expired, and what renews them gives expired ones",
            hint=_SIGNED_IN,
            code="ExpiredToken",
            phase="sign",
        )
    if isinstance(error, unsigned):
        kind = type(error).__name__
        # The text of a credential process may hold what it printed.
        text = "" if kind == "CredentialRetrievalError" else f": {printable(str(error))}"
        return AccessError(
            f"{where}: no credentials ({kind}{text})", hint=_SIGNED_IN, code=kind, phase="sign"
        )
    if isinstance(error, exceptions.SSLError):
        return AccessError(
            f"{where}: the connection is not trusted: {printable(str(error))}",
            hint="Check the endpoint's certificate, or set AWS_CA_BUNDLE to its authority.",
            code="SSLError",
            phase="connect",
        )
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        connecting = isinstance(
            error,
            exceptions.EndpointConnectionError
            | exceptions.ConnectTimeoutError
            | exceptions.ProxyConnectionError,
        )
        return Failure(status=None, message=str(error), connecting=connecting)
    if isinstance(error, ResponseParserError):
        return Failure(status=200, code="NotS3", message="the answer is not S3's")
    return UsageError(f"{where}: {printable(str(error))}", hint="Check the bucket and endpoint.")
