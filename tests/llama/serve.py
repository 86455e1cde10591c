"""A real llama.cpp server: ``python -m tests.llama.serve WEIGHTS chat|embeddings`` prints its URL and ends with its standard input."""

from __future__ import annotations

import os
import sys

import xllamacpp


def main() -> None:
    weights, kind = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = weights
    parameters.n_ctx = 1024
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = 2
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.embedding = kind == "embeddings"
    if kind == "embeddings":
        parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
