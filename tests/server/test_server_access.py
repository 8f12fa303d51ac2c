"""Who may ask: keys, names of hosts, pages of other origins."""

from __future__ import annotations

import openai
import pytest
from live_server import live

from gpt2fast import LanguageModel


def test_keys(toy: LanguageModel) -> None:
    with live(toy, key="right") as server:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "right"},
            {"Authorization": "Bearer é"},
        ):
            encoded = {name: value.encode().decode("latin-1") for name, value in headers.items()}
            for method, path in (
                ("POST", "/v1/completions"),
                ("GET", "/metrics"),
                ("GET", "/v1/models"),
                ("GET", "/x"),
            ):
                status, found, content = server.ask(method, path, {} if method == "POST" else None, encoded)
                assert (status, content["error"]["code"]) == (401, "invalid_api_key")
                assert found["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("GET", "/")[0] == 200
        right = {"Authorization": "Bearer right"}
        assert server.ask("POST", "/v1/completions", {"prompt": "a"}, right)[0] == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right") as client:
            assert client.completions.create(model="demo", prompt="a").choices
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong")
        with wrong, pytest.raises(openai.AuthenticationError, match="a key is needed"):
            wrong.models.list()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:9"}, 200),
        ({"Host": "127.0.0.1:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "model.example"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost:80", "Origin": "https://localhost:80"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "https://friend.example"}, 200),
    ],
)
def test_hosts_and_origins(toy: LanguageModel, headers: dict[str, str], status: int) -> None:
    with live(toy, hosts=["Model.example"], origins=["https://friend.example"]) as server:
        found = server.ask("POST", "/v1/completions", {"prompt": "a"}, headers)
        assert found[0] == status, found
        friendly = headers.get("Origin") == "https://friend.example"
        assert ("access-control-allow-origin" in found[1]) == friendly


def test_preflights(toy: LanguageModel) -> None:
    asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization"
    with live(toy, origins=["https://friend.example"], key="right") as server:
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers=asked)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://friend.example")
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers={**asked, "Origin": "https://x.example"})
        assert (status, "access-control-allow-origin" in headers) == (400, False)
    with live(toy) as server:
        assert server.ask("OPTIONS", "/v1/completions", headers=asked)[0] == 403
