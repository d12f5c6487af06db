"""The figures of a rental, typed at the real program's terminal; nothing is rented by asking."""

import json

import pytest

from tests import training
from tests.end_to_end.test_terminal_pty import Screen
from tests.rental_fake import KEY, offer, rental_fake

CTRL_C = "\x03"


@pytest.fixture
def fake():
    with rental_fake() as provider:
        provider.offers = [offer(2, num_gpus=1, dph_total=1.1)]
        yield provider


@pytest.fixture
def make_screen(tmp_path, fake, moto_endpoint, make_bucket, put_objects):
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, training.text_shards())
    settings = {
        "layers": 1, "seq_len": 32, "device": "cpu", "min_size_kb": 0.1, "min_objects": 1,
        "endpoint_url": moto_endpoint, "region": "us-east-1", "name": "fox-1",
    }  # fmt: skip
    (tmp_path / "quark.yaml").write_text(json.dumps(settings))

    def make():
        return Screen(
            tmp_path, f"train quark with s3://{bucket}/d/train/ for 3 steps on vast",
            AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", VAST_API_KEY=KEY,
            VAST_URL=fake.url,
        )  # fmt: skip

    return make


def test_figures_are_typed_then_the_plan_is_asked_about(make_screen, fake, tmp_path):
    screen = make_screen()
    screen.until("$1.100 an hour is the cheapest")
    screen.until("cost an hour, in dollars?")
    screen.send("2\n")
    screen.until("run may cost, in dollars?")
    screen.send("$15\n")
    screen.until("Start fox-1?")
    plan = screen.text
    assert "2 on vast · 1 x RTX 4090" in plan
    assert "of the $15 that were said" in plan
    assert "--override max_price_hour=2 --override max_cost=15" in plan
    screen.send("n\n")
    assert screen.end() == 2
    assert "Nothing was started." in screen.text
    assert (fake.made, (tmp_path / "runs").exists()) == ([], False)


@pytest.mark.nightly
def test_ctrl_c_at_the_question_ends_it(make_screen, fake, tmp_path):
    screen = make_screen()
    screen.until("cost an hour, in dollars?")
    screen.send(CTRL_C)
    assert screen.end() == 130
    assert "nothing was started" in screen.text
    assert (fake.made, (tmp_path / "runs").exists()) == ([], False)
