"""`vast.credentials: session`: what R2 is asked for, what is sent instead of the keys, what is refused."""

from typing import Any

import msgspec
import pytest

from resource_manager.bridge_order import rented_pipeline
from resource_manager.bridge_session import session_grant, with_session
from tests.resource_manager.launch_targets.test_r2_tokens import (
    ACCOUNT,
    TOKEN,
    Cloudflare,
    cloudflare,
    refused,
)
from tests.resource_manager.test_bridge_renting import Boarding, boarding, changed, fake, renting
from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.errors import AccessError, UsageError

__all__ = ["boarding", "cloudflare", "fake", "renting"]  # fixtures


def session(source: str = "hf://me/set", **r2: Any) -> BridgeSettings:
    place = {"account_id": ACCOUNT, "endpoint_url": None, "region": "auto", **r2}
    return changed(
        r2=place, vast={"credentials": "session", "max_hours": 2.0}, pipeline={"input_uri": source}
    )


@pytest.mark.parametrize(
    ("source", "prefix", "prefixes"),
    [
        ("hf://me/set", "set", ("set/",)),
        ("r2://bucket/in/", "set", ("set/", "in")),
        ("r2://bucket/in/a.jsonl", "set", ("set/", "in/a.jsonl")),
        ("r2://bucket", "set", ()),
        ("https://example.org/a.jsonl", "", ()),
    ],
)
def test_it_reaches_the_folders_of_the_pipeline_alone(
    tmp_path, aws_environment, cloudflare: Cloudflare, source, prefix, prefixes
):
    here = {"CLOUDFLARE_API_TOKEN": TOKEN, "CLOUDFLARE_BASE_URL": cloudflare.url}
    found = rented_pipeline(session(source, prefix=prefix), None, here, tmp_path)
    made = with_session(found, here)
    [(path, body)] = cloudflare.asked
    assert path.endswith(f"/accounts/{ACCOUNT}/r2/temp-access-credentials")
    assert (body["bucket"], body["permission"]) == ("bucket", "object-read-write")
    assert tuple(body.get("prefixes", ())) == prefixes
    assert body["parentAccessKeyId"] == "AKIDEXAMPLE"
    assert body["ttlSeconds"] == 3 * 3600  # two hours, and one around them
    assert made.sent.variables == {
        "AWS_ACCESS_KEY_ID": "accessKeyId-1", "AWS_SECRET_ACCESS_KEY": "secretAccessKey-1",
        "AWS_SESSION_TOKEN": "token-1",
    }  # fmt: skip
    assert made.sent.long_lived == ()
    assert made.sent.expires_at is not None
    assert made.identity == found.identity


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (session(account_id=None, endpoint_url="http://127.0.0.1:9"), "the output is not in R2"),
        (session("r2://other/in/"), "r2://other/in/ is not in the bucket of the output"),
        (
            msgspec.structs.replace(session(), r2=None, output_dir="gs://b/set"),
            "the output is not in R2",
        ),
    ],
)
def test_what_one_credential_cannot_reach_is_refused(settings, said):
    with pytest.raises(UsageError, match=said) as caught:
        session_grant(settings)
    assert "vast.credentials" in caught.value.hint


def test_it_is_made_before_the_preflight_and_is_what_the_machine_gets(
    renting, fake, cloudflare: Cloudflare, boarding: type[Boarding]
):
    renting.here = {"CLOUDFLARE_API_TOKEN": TOKEN, "CLOUDFLARE_BASE_URL": cloudflare.url}
    assert "a session for its folders alone" in "".join(renting.renter.plan_lines(session(), None))
    assert cloudflare.asked == []
    cloudflare.answers = [refused(403, 10000, "no")]
    with pytest.raises(AccessError, match="no session could be made"):
        renting.renter.run(session(), None)
    assert (renting.begun, fake.made) == (0, [])

    assert renting.renter.run(session(), None) is not None
    [there] = boarding.made
    assert there.pipeline.sent.variables["AWS_SESSION_TOKEN"] == "token-2"
    assert renting.sent == ["token-2"]
    assert "hunter2" not in renting.said
    assert "long-lived" not in renting.said
