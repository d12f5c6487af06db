"""Where a URL may lead: judged by address, at the moment of connecting, for redirects too."""

import pytest

from tests.fakes import Reply, StubServer
from tools_utilities.errors import AccessError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores._web_addresses import RefusedAddressError, guard, may_connect

PRIVATE = (
    *("10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "fd00:ec2::254", "0.0.0.0"),  # noqa: S104 - refused
    *("169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:10.0.0.5", "::ffff:169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "2002:a00:5::1", "224.0.0.1", "240.0.0.1", "127.0.0.1", "::1"),
    *("::a00:5", "::ffff:0:10.0.0.5", "64:ff9b:1::1", "fec0::1", "2001:0:a00:5::1", "::7f00:1"),
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_never_leads_to_an_address_that_is_not_public(address):
    assert not may_connect(address, "data.example.org", "data.example.org")


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1"])
def test_public_addresses_are_connected_to(address):
    assert may_connect(address, "data.example.org", "data.example.org")


def test_this_machine_is_read_where_the_url_itself_says_so():
    for host in ("127.0.0.1", "localhost", "a.localhost"):
        assert may_connect("127.0.0.1", host, host)
        assert not may_connect("127.0.0.1", host, "example.org")  # a redirect


def test_hosts_of_no_proxy_are_ones_own_but_never_link_local(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "corp.internal,169.254.169.254")
    assert may_connect("10.1.2.3", "data.corp.internal", "data.corp.internal")
    assert not may_connect("10.1.2.3", "example.org", "example.org")
    assert not may_connect("169.254.169.254", "169.254.169.254", "169.254.169.254")


@pytest.mark.parametrize("host", ["10.0.0.5", "169.254.169.254", "[fd00::1]", "192.168.0.9:8080"])
@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
def test_an_address_in_the_url_is_refused_before_anything_is_sent(host, proxy, monkeypatch):
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    store = open_store(StoreSpec(uri=f"http://{host}"))
    with pytest.raises(AccessError, match="not connected") as caught:
        store.head("latest/meta-data")
    assert "NO_PROXY" in caught.value.hint


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0xa000005"])
@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
def test_numbers_in_other_forms_are_the_addresses_that_they_connect_to(host, proxy, monkeypatch):
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(AccessError, match="not connected"):
        open_store(StoreSpec(uri=f"http://{host}")).head("latest/meta-data")


@pytest.mark.parametrize(
    "place",
    [
        "http://169.254.169.254/",
        "http://2852039166/",
        "http://[::ffff:10.0.0.5]/",
        "http://localhost/",
    ],
)
def test_a_redirect_is_not_followed_by_a_proxy_either(place, monkeypatch):
    """A proxy may reach what we may not."""
    with StubServer(lambda _: Reply(302, {"location": place})) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        store = open_store(StoreSpec(uri="http://data.example.org"))
        with pytest.raises(AccessError, match="not connected"):
            store.get("x.jsonl")
        assert len(proxy.requests) == 1


def test_hosts_of_no_proxy_are_asked_without_one(monkeypatch):
    with StubServer(lambda _: Reply(200, {}, b"body")) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert b"".join(open_store(StoreSpec(uri=server.url)).get("x")) == b"body"


@pytest.mark.parametrize(
    "place",
    [
        "http://169.254.169.254/latest",
        "http://10.0.0.5/x",
        "http://[::ffff:10.0.0.5]/",
        "http://2130706433/",
    ],
)
def test_a_redirect_into_a_private_network_is_refused(place):
    with StubServer(lambda _: Reply(302, {"location": place})) as server:
        store = open_store(StoreSpec(uri=server.url))
        with pytest.raises(AccessError, match="not connected"):
            store.get("x.jsonl")


def test_a_redirect_on_this_machine_is_followed():
    def answer(request):
        return Reply(200, {}, b"body") if request.key else Reply(302, {"location": "/a/b"})

    with StubServer(answer) as server:
        store = open_store(StoreSpec(uri=server.url))
        assert b"".join(store.get("x")) == b"body"


def test_a_name_is_judged_by_what_it_means_when_it_is_connected_to():
    """A name that was public a moment ago (DNS rebinding): the address judged is the one used."""
    import urllib3

    with StubServer(lambda _: Reply(200, {}, b"secret")) as server:
        answers = iter([["127.0.0.1"]])
        pool = guard(urllib3.PoolManager(), "rebound.example", lambda host, port: next(answers))
        with pytest.raises(RefusedAddressError, match=r"rebound.example is 127\.0\.0\.1"):
            pool.request("GET", f"http://rebound.example:{server.port}/", retries=False)
        assert not server.requests


def test_one_private_address_of_several_is_enough_to_refuse():
    import urllib3

    pool = guard(
        urllib3.PoolManager(), "x.example", lambda host, port: ["93.184.216.34", "10.0.0.1"]
    )
    with pytest.raises(RefusedAddressError):
        pool.request("GET", "http://x.example/", retries=False)
