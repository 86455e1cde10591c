"""Bedrock by boto3: Converse, Invoke, and both as streams."""

import json
from concurrent.futures import ThreadPoolExecutor

import boto3

client = boto3.client("bedrock-runtime")
asked = {"modelId": "amazon.nova-pro-v1:0", "messages": [{"role": "user", "content": [{"text": "Hello"}]}]}
answer = client.converse(**asked, inferenceConfig={"maxTokens": 50})
print(answer["output"]["message"]["content"][0]["text"], answer["usage"]["totalTokens"])
for event in client.converse_stream(**asked)["stream"]:
    if "contentBlockDelta" in event:
        print(event["contentBlockDelta"]["delta"]["text"], end="|")
print()
body = json.dumps({"prompt": "Hello", "max_tokens": 50})
print(client.invoke_model(modelId="mistral.large-v1:0", body=body)["body"].read().decode())
for event in client.invoke_model_with_response_stream(modelId="mistral.large-v1:0", body=body)["body"]:
    print(json.loads(event["chunk"]["bytes"])["outputs"][0]["text"], end="|")
print()
with ThreadPoolExecutor(4) as pool:
    for done in [pool.submit(client.converse, **asked) for _ in range(6)]:
        print(done.result()["output"]["message"]["content"][0]["text"])
