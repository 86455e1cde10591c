"""Objects, a queue and a table at AWS: parts of a large file in threads, several clients at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig

where = {"endpoint_url": os.environ["SERVER_URL"], "region_name": "eu-west-1"}
keys = {"aws_access_key_id": "stub", "aws_secret_access_key": "stub"}
objects = boto3.client("s3", **where, **keys)
objects.create_bucket(Bucket="depths", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
objects.put_object(Bucket="depths", Key="fjord", Body=b"deep " * 1000)
found = objects.get_object(Bucket="depths", Key="fjord")
print(found["LastModified"], found["ETag"], len(found["Body"].read()))
Path("large.bin").write_bytes(bytes(range(256)) * 50_000)
parts = TransferConfig(multipart_threshold=5_000_000, multipart_chunksize=5_000_000)
objects.upload_file("large.bin", "depths", "large", Config=parts)
objects.download_file("depths", "large", "again.bin", Config=parts)
print(Path("again.bin").read_bytes() == Path("large.bin").read_bytes())
queue = boto3.client("sqs", **where, **keys)
address = queue.create_queue(QueueName="depths")["QueueUrl"]
print([queue.send_message(QueueUrl=address, MessageBody=str(number))["MessageId"] for number in range(3)])
taken = queue.receive_message(QueueUrl=address, MaxNumberOfMessages=3)["Messages"]
print([(message["Body"], message["ReceiptHandle"]) for message in taken])
table = boto3.resource("dynamodb", **where, **keys).create_table(
    TableName="depths",
    KeySchema=[{"AttributeName": "place", "KeyType": "HASH"}],
    AttributeDefinitions=[{"AttributeName": "place", "AttributeType": "S"}],
    BillingMode="PAY_PER_REQUEST",
)
table.put_item(Item={"place": "fjord", "metres": 1300})
print(table.get_item(Key={"place": "fjord"})["Item"], table.creation_date_time)
with ThreadPoolExecutor(4) as pool:
    put = pool.map(lambda number: objects.put_object(Bucket="depths", Key=str(number), Body=b"x"), range(8))
    print([one["ResponseMetadata"]["RequestId"] for one in put])
