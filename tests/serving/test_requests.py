"""Whatever is sent, the answer is JSON; a 4xx says in one line what was wrong."""

import json

import pytest
import torch
from fastapi.testclient import TestClient

from fednews.errors import UsageError
from fednews.serving.ranking import Ranker
from fednews.serving.requests import MAX_BODY
from fednews.serving.service import create_app

from .cases import listing_of, random_service

JSON = {"content-type": "application/json"}
EVEN = "[0.2,0.2,0.2,0.2,0.2]"


@pytest.fixture(scope="module")
def http() -> TestClient:
    return TestClient(random_service(k_max=50))  # raises what the service does not handle


def body(attention: str = EVEN, k: str = "3", more: str = "") -> bytes:
    return f'{{"attention": {attention}, "k": {k}{more}}}'.encode()


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (body("[NaN, 0, 0, 0, 1]"), 422, "attention.0: Input should be a finite number"),
        (body("[Infinity, 0, 0, 0, 1]"), 422, "finite"),
        (body("[-Infinity, 0, 0, 0, 1]"), 422, "finite"),
        (body("[1e999, 0, 0, 0, 1]"), 422, "finite"),
        (body("[1e300, 0, 0, 0, -1e300]"), 422, "attention.0: Input should be less than or equal to 1"),
        (body("[-0.5, 0.5, 0.5, 0.5, 0]"), 422, "greater than or equal to 0"),
        (body("[0.9, 0.9, 0, 0, 0]"), 422, "must sum to 1"),
        (body("[0, 0, 0, 0, 0]"), 422, "must sum to 1"),
        (body("[0.5, 0.5]"), 422, "at least 5"),
        (body("[" + "0," * 5 + "1]"), 422, "at most 5"),
        (body("[]"), 422, "at least 5"),
        (body('"0.2"'), 422, "array"),
        (body('["0.2", 0.2, 0.2, 0.2, 0.2]'), 422, "valid number"),
        (body("[true, 0, 0, 0, 0]"), 422, "valid number"),
        (body("[[0.2], 0.2, 0.2, 0.2, 0.2]"), 422, "valid number"),
        (body("null"), 422, "array"),
        (body(k="0"), 422, "k: Input should be greater than or equal to 1"),
        (body(k="-1"), 422, "greater than or equal to 1"),
        (body(k="51"), 422, "less than or equal to 50"),
        (body(k="2.5"), 422, "valid integer"),
        (body(k="true"), 422, "valid integer"),
        (body(k="9" * 10_000), 422, "number out of range"),
        (body(more=', "user": "U1"'), 422, "user: Extra inputs"),
        (b'{"k": 3}', 422, "attention: Field required"),
        (b"", 422, "Invalid JSON"),
        (b"null", 422, "object"),
        (b"[1, 2", 422, "Invalid JSON"),
        (b"\xff\xfe\x00", 422, "Invalid JSON"),
        (b"[" * 60_000, 422, "recursion limit"),
        (b'{"attention":' + b'{"a":' * 10_000, 422, "recursion limit"),
        (b" " * MAX_BODY + body(), 413, f"longer than {MAX_BODY} bytes"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_body_that_is_no_request_gets_a_4xx_in_json(http, content, status, message):
    answer = http.post("/recommend", content=content, headers=JSON)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_only_json_is_read(http, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = http.post("/recommend", content=body(), headers=headers)
    assert (answer.status_code, "Content-Type" in answer.json()["error"]) == (415, True)


def test_a_body_of_unknown_length_is_read_up_to_the_bound(http):
    read = []

    def endless():
        for number in range(1000):
            read.append(number)
            yield b" " * 10_000

    assert http.post("/recommend", content=endless(), headers=JSON).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/recommend", 405), ("PUT", "/health", 405), ("GET", "/../etc/passwd", 404)],
)
def test_wrong_addresses_are_json_too(http, method, path, status):
    answer = http.request(method, path)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_a_charset_is_no_other_content_type(http):
    answer = http.post("/recommend", content=body(), headers={"content-type": "application/json; charset=utf-8"})
    assert answer.status_code == 200


def test_an_answer_names_the_news_best_first(http):
    found = http.post("/recommend", content=body(k="7"), headers=JSON).json()["news"]
    assert len(found) == 7
    scores = [news["score"] for news in found]
    assert scores == sorted(scores, reverse=True)
    for news in found:
        number = news["id"].removeprefix("N ")
        assert news == {"id": f"N {number}", "title": f"title {number}", "category": f"topic {number}"} | {
            "score": news["score"]
        }


def test_k_is_bounded_by_the_catalogue(http):
    small = TestClient(random_service(news=4, k_max=50))
    assert len(small.post("/recommend", content=body(k="4"), headers=JSON).json()["news"]) == 4
    assert small.post("/recommend", content=body(k="5"), headers=JSON).status_code == 422


def test_health_and_the_schema_tell_the_bounds(http):
    assert http.get("/health").json() == {"status": "ok", "news": 1000, "basis": 5, "k_max": 50}
    schema = json.dumps(http.get("/openapi.json").json()["paths"]["/recommend"]["post"]["requestBody"])
    assert '"maxItems": 5' in schema
    assert '"maximum": 50' in schema


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="k-max"):
        random_service(k_max=0)
    with pytest.raises(UsageError, match="listed"):
        create_app(Ranker(torch.ones(3, 2), torch.ones(2, 2)), listing_of(4))
