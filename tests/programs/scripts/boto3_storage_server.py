"""moto's server, with a line of its ledger for each request."""

import logging
import sys
from pathlib import Path

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

ledger = Path(sys.argv[2])
served = DomainDispatcherApplication(create_backend_app)


def counted(environ, start_response):
    with ledger.open("a") as file:
        file.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n")
    return served(environ, start_response)


logging.getLogger("werkzeug").setLevel(logging.ERROR)
run_simple("127.0.0.1", int(sys.argv[1]), counted, threaded=True)
