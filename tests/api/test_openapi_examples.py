"""Examples of alert requests in the OpenAPI document are accepted."""

import pytest

pytestmark = pytest.mark.anyio

YAML = "application/yaml"


def body_of(api, path, method):
    return api.app.openapi()["paths"][f"/api/v1{path}"][method]["requestBody"]["content"]


def examples(api, path, method):
    schemas = api.app.openapi()["components"]["schemas"]
    name = body_of(api, path, method)["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return schemas[name]["examples"]


async def test_documented_examples_are_accepted(api):
    for path, method in (("/receivers", "post"), ("/rules", "put")):
        for example in examples(api, path, method):
            answer = await api.client.request(method, f"/api/v1{path}", json=example)
            assert answer.is_success, answer.text


async def test_silence_example_is_accepted_at_its_time(api):
    [example] = examples(api, "/silences", "post")
    api.clock.now_s = 4_098_900_000.0  # the day before
    answer = await api.client.post("/api/v1/silences", json=example)
    assert (answer.status_code, answer.json()["state"]) == (201, "coming")


@pytest.mark.parametrize(("path", "method"), [("/rules", "PUT"), ("/rules/check", "POST")])
async def test_yaml_rules_example_is_accepted(api, path, method):
    example = body_of(api, path, method.lower())[YAML]["example"]
    headers = {"content-type": YAML}
    answer = await api.client.request(method, f"/api/v1{path}", content=example, headers=headers)
    assert answer.status_code == 200, answer.text
    assert [rule["name"] for rule in answer.json()["rules"]] == ["slow"]
