"""Amazon Bedrock: the dialects of Converse and InvokeModel, including streams. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from tracekit.integration import Dialect, Endpoint, Integration

__all__ = ["integration"]

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = (
    Endpoint("POST", "model/*/converse", "read_only"),
    Endpoint("POST", "model/*/converse-stream", "read_only"),
    Endpoint("POST", "model/*/invoke", "read_only"),
    Endpoint("POST", "model/*/invoke-with-response-stream", "read_only"),
    Endpoint("POST", "model/*/count-tokens", "read_only"),
    Endpoint("POST", "guardrail/*/version/*/apply", "read_only"),
    Endpoint("POST", "guardrail-checks/invoke", "read_only"),
    Endpoint("POST", "knowledgebases/*/retrieve", "read_only"),
    Endpoint("POST", "rerank", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._bedrock import Converse, Invoke

    return (Converse(), Invoke())


integration = Integration(
    "bedrock",
    modules=("botocore",),
    dialects=_dialects,
    agents=("Boto3/", "Botocore/", "aiobotocore/"),
    hosts=("bedrock*.amazonaws.com", "bedrock*.amazonaws.com.cn"),
    endpoints=_ENDPOINTS,
    credentials=(
        ("AWS_ACCESS_KEY_ID", "AWS_BEARER_TOKEN_BEDROCK"),
        "AWS_SECRET_ACCESS_KEY",
        "AWS_EC2_METADATA_DISABLED",
    ),
    settings=("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"),
    frameworks=("langchain_aws",),
)
