"""Who is answered: this machine alone, or who knows the token; only questions; and never under another name."""

import pytest

from esper.ui import guard
from esper.ui.guard import CSP, host_of, is_loopback
from ui_toys import Answer, Asker, write_run

TOKEN = "pass word/<&>"
ENCODED = "pass+word%2F%3C%26%3E"


@pytest.fixture
def asker(tmp_path) -> Asker:
    write_run(tmp_path / "run", [0.5])
    return Asker(tmp_path)


@pytest.fixture
def guarded(tmp_path) -> Asker:
    write_run(tmp_path / "run", [0.5])
    return Asker(tmp_path, TOKEN, ("named",))


def test_every_answer_has_the_headers_of_the_contract(asker, guarded, monkeypatch):
    answers = [asker(path) for path in ("/api/runs", "/api/words", "/", "/nothing", "/api/runs?limit=x")]
    answers += [asker("/api/runs", "POST"), guarded("/api/runs"), asker("/api/runs", host="evil.example")]
    monkeypatch.setattr(asker.library, "page", lambda **_: 1 / 0)
    failed = asker("/api/runs")
    assert failed.json == {"problem": "The server failed to answer: its terminal says why."}
    for answer in [*answers, failed]:
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert answers[0].headers["cache-control"] == "no-store"
    assert "unsafe" not in CSP


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/x.js", "/nothing"])
def test_the_page_can_only_be_read(asker, method, path):
    found = asker(path, method)
    assert (found.status, found.headers["allow"]) == (405, "GET, HEAD")
    assert found.json.keys() == {"problem"}


def test_the_head_of_every_answer_can_be_asked_for(asker):
    for path in ("/api/runs", "/api/events", "/api/words"):
        assert asker(path, "HEAD").status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8266", 200),
        ("127.9.9.9", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:8266", 200),
        ("named", 400),
        ("evil.example", 400),
        ("evil.example:8266", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("192.168.0.1", 400),
        ("0.0.0.0", 400),
        ("", 400),
        ("[", 400),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_answered(asker, host, status):
    """A page of somebody else can point its own name at this machine, and would then be allowed to read the answers."""
    assert asker("/api/runs", host=host).status == status


def test_with_a_token_addresses_and_given_names_are_answered(guarded):
    def status(host: str) -> int:
        return guarded("/api/runs", host=host, authorization=f"Bearer {TOKEN}").status

    assert [status(host) for host in ("192.168.0.1:80", "[fe80::1]", "named:80", "localhost")] == [200] * 4
    assert [status(host) for host in ("other", "named.evil.example", "")] == [400] * 3


def test_pages_of_other_sites_cannot_make_the_server_read(asker):
    def status(**headers: str) -> int:
        return asker("/api/runs", **headers).status

    assert status(sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 400
    assert status(sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    assert status(sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_token_is_given_once_and_then_kept_in_a_cookie(guarded):
    first = guarded(f"/?token={ENCODED}")
    assert (first.status, first.headers["location"]) == (303, "/")
    parts = first.headers["set-cookie"].casefold().split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= set(parts)
    assert "8266" in cookie_of(first), "other ports of this machine have cookies of their own"
    assert TOKEN not in first.headers["set-cookie"]
    assert guarded("/api/runs", cookie=cookie_of(first)).status == 200
    assert guarded("/api/runs", cookie=f"other=1; {cookie_of(first)}").status == 200


def test_the_rest_of_an_address_stays_when_its_token_is_taken_out(guarded):
    found = guarded(f"/api/runs?sort=name&token={ENCODED}&search=a%26b")
    assert found.headers["location"] == "/api/runs?sort=name&search=a%26b"


@pytest.mark.parametrize("path", ["//evil.example", "/%5Cevil.example", "///evil.example/", "/%2F%2Fevil.example"])
def test_a_token_leads_to_no_other_site(guarded, path):
    location = guarded(f"{path}?token={ENCODED}").headers["location"]
    assert location.startswith("/")
    assert location[1:2] not in ("/", "\\")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/runs", {}),
        ("/", {}),
        ("/static/index.html", {}),
        ("/api/events", {}),
        ("/?token=", {}),
        ("/?token=wrong", {}),
        ("/?" + "token=wrong&" * 1000, {}),
        ("/?Token=" + ENCODED, {}),
        ("/api/runs", {"authorization": "Bearer wrong"}),
        ("/api/runs", {"authorization": "Bearer"}),
        ("/api/runs", {"authorization": f"Basic {TOKEN}"}),
        ("/api/runs", {"authorization": TOKEN}),
        ("/api/runs", {"cookie": f"esper_ui_8266={TOKEN}"}),
        ("/api/runs", {"cookie": "esper_ui_8266="}),
        ("/api/runs", {"cookie": "esper_ui_8266"}),
    ],
)
def test_who_does_not_know_the_token_gets_nothing(guarded, path, headers):
    found = guarded(path, **headers)
    assert found.status == 401
    assert found.json == {"problem": "A token is needed: open the address that `esper ui` printed, with its ?token=."}
    assert "set-cookie" not in found.headers


def test_the_scheme_of_a_token_may_be_written_in_any_way(guarded):
    assert guarded("/api/runs", authorization=f"bearer {TOKEN}").status == 200
    assert guarded("/api/runs", authorization=f"BEARER  {TOKEN}").status == 200


def test_a_cookie_of_another_token_is_not_known(guarded, tmp_path):
    cookie = cookie_of(guarded(f"/?token={ENCODED}"))
    assert Asker(tmp_path, "another")("/api/runs", cookie=cookie).status == 401


def test_secrets_are_compared_in_constant_time(guarded, monkeypatch):
    compared = []
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b)
    guarded("/?token=x")
    guarded("/", authorization="Bearer x", cookie="esper_ui_8266=x")
    guarded("/api/runs", authorization=f"Bearer {TOKEN}")
    assert len(compared) >= 4
    assert set(compared) == {(32, 32)}, "of one length, so that nothing is learned of the token's"


def test_hosts_of_headers():
    hosts = {"a:1": "a", "[::1]:1": "::1", "[::1]": "::1", "A": "a", "": "", "::1": ""}
    assert {header: host_of(header) for header in hosts} == hosts
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", "localhost.")] == [
        *[True] * 3,
        *[False] * 4,
    ]
