"""Who may call what: keys, public routes, browsers, proxies."""

import pytest
from fakes.http import serve
from fastapi.routing import APIRoute
from starlette.routing import Route

KEY = "k3y-ünïcode"
BEARER = {"authorization": f"Bearer {KEY}".encode()}
PUBLIC = {"/health", "/ready"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("second\n")
    with serve(api_key=KEY, api_key_file=keys, metrics_auth="on") as served:
        yield served


def routes(app):
    for route in app.routes:
        assert isinstance(route, Route | APIRoute)
        for method in route.methods:
            yield method, route.path


WRONG = {
    "none": {},
    "empty": {"authorization": b""},
    "empty token": {"authorization": b"Bearer"},
    "wrong": {"authorization": b"Bearer wrong"},
    "prefix": {"authorization": f"Bearer {KEY[:-1]}".encode()},
    "longer": {"authorization": f"Bearer {KEY}x".encode()},
    "non-ascii": {"authorization": b"Bearer \xff\xfe"},
    "latin-1": {"authorization": f"Bearer {KEY}".encode("latin-1")},
    "basic": {"authorization": f"Basic {KEY}".encode()},
    "bare": {"authorization": KEY.encode()},
    "elsewhere": {"x-api-key": KEY.encode()},
}


@pytest.mark.parametrize("name", WRONG)
def test_every_route_needs_the_key(locked, name):
    for method, path in [*routes(locked.app), ("GET", "/nope"), ("POST", "/generate/"),
                         ("GET", "/HEALTH"), ("GET", "/health/"), ("GET", "//health"),
                         ("GET", "/health/../info"), ("OPTIONS", "/info")]:  # fmt: skip
        answer = locked.client.request(method, path, headers=WRONG[name])
        if path in PUBLIC:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert answer.json()["error_type"] == "unauthorized"
        assert KEY not in answer.text


def test_a_crafted_host_opens_nothing(locked):
    for host in ("health", "127.0.0.1/health", "x/health?", "x#/health"):
        answer = locked.client.get("/info", headers={"host": host})
        assert answer.status_code == 401


def test_two_authorization_headers_are_one_too_many(locked):
    headers = [("authorization", b"Bearer wrong"), ("authorization", b"Bearer second")]
    assert locked.client.get("/info", headers=headers).status_code == 401


def test_every_key_is_accepted(locked):
    for headers in (
        BEARER,
        {"authorization": "Bearer second"},
        {"authorization": "bearer  second"},
    ):
        assert locked.client.get("/info", headers=headers).status_code == 200
        body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
        assert locked.client.post("/generate", json=body, headers=headers).status_code == 200


def test_the_key_is_checked_before_the_body_and_the_queue(locked):
    answer = locked.client.post("/generate", content=b"x" * 3_000_000)
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, 200),  # bound to loopback
        ({"metrics_auth": "on"}, 401),
        ({"host": "0.0.0.0"}, 401),
        ({"host": "0.0.0.0", "metrics_auth": "off"}, 200),
    ],
)
def test_metrics_are_open_on_loopback_only(given, code):
    with serve(api_key=KEY, **given) as served:
        assert served.client.get("/metrics").status_code == code
        assert served.client.get("/metrics", headers=BEARER).status_code == 200


def test_without_keys_everything_is_open(served):
    assert served.client.get("/info").status_code == 200


def test_browsers_of_a_configured_origin():
    origin = {"origin": "https://app.example"}
    asks = {**origin, "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    with serve(cors_origin="https://app.example", api_key=KEY) as served:
        answer = served.client.options("/generate", headers=asks)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in answer.headers
        refused = served.client.post("/generate", json={}, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        other = served.client.get("/health", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_without_configuration_no_browser_may_read(served):
    answer = served.client.get("/health", headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_behind_a_prefix_that_a_proxy_strips():
    with serve(root_path="/engram", api_key=KEY) as served:
        assert served.client.get("/health").status_code == 200
        for path in ("/info", "/engram/info", "/engram/health", "/engramhealth"):
            assert served.client.get(path).status_code == 401
        schema = served.client.get("/openapi.json", headers=BEARER).json()
        assert schema["servers"] == [{"url": "/engram"}]
        body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
        assert served.client.post("/generate", json=body, headers=BEARER).status_code == 200
        served.runtime.start_drain()  # the gate knows the route behind the prefix
        assert served.client.post("/generate", json=body, headers=BEARER).status_code == 503


def test_tls(tmp_path):
    import ssl
    import subprocess

    import httpx

    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with serve(ssl_certfile=cert, ssl_keyfile=key) as served:
        context = ssl.create_default_context(cafile=str(cert))
        answer = httpx.get(f"https://127.0.0.1:{served.port}/ready", verify=context)
        assert answer.json() == {"status": "ready"}


def test_what_was_computed_for_one_key_serves_no_other(locked):
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 1}}
    keys = (KEY, "second", KEY)
    for key in keys:
        headers = {"authorization": f"Bearer {key}".encode()}
        assert locked.client.post("/generate", json=body, headers=headers).status_code == 200
    first, second, third = (each.isolation for each in locked.engine.submitted[-3:])
    assert first == third != second
    assert not any(key.encode().hex() in (first, second) or key in (first, second) for key in keys)


def test_without_keys_everybody_shares(served):
    served.generate(max_new_tokens=1)
    assert served.engine.submitted[-1].isolation == ""
